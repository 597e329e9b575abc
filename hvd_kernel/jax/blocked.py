"""Deadlock detection, a rank's part: it tells the core when it is blocked; other orders get an error.

Programs run one after the other, so a rank that waits in one asks for nothing else but what is left of it; and once all
of XLA's threads are idle, nothing of it can begin before what is waited for has ended. Outside of programs a rank that
waits for an operation asks for nothing at all. A thread looks now and then. The core compares the ranks
(native/engine/controller/deadlock.h). Where other threads run code of the user's, or JAX had begun before us and runs
programs at a time, nothing is said: the stall check tells of those.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from hvd_kernel.core import call_stack, deadlocks, handles, session
from hvd_kernel.errors import NotInitialized

LOOK_S = 0.15
"""Between two looks; one at which nothing waits costs some microseconds."""

WAIT_S = 0.4
"""What has waited so long is looked at: with the other ranks' looks, told within a second."""

IDLE = 0.2
"""The share of a processor below which no thread of XLA's computes."""

MOST_S = 10.0
"""Between two times that the same is said."""


def watch(under_way: Any) -> threading.Thread:
    """Begin; ``under_way`` tells whether an operation of a program has begun and not ended."""
    deadlocks.delegate_waits_to("jax")
    thread = threading.Thread(target=_Watch(under_way).run, name="hvd-blocked", daemon=True)
    thread.start()
    return thread


class _Watch:
    def __init__(self, under_way: Any) -> None:
        self._under_way = under_way
        self._said, self._due, self._pause = "", 0.0, 0.0
        self._looked, self._used = time.monotonic(), time.process_time()

    def run(self) -> None:
        never = threading.Event()
        while not never.wait(LOOK_S):
            busy = self._busy()
            if (self._under_way() or _waits_outside()) and not busy:
                self._look()
            else:
                self._said = ""

    def _busy(self) -> bool:
        """Tell whether this process has computed since the last look."""
        now, used = time.monotonic(), time.process_time()
        share = (used - self._used) / max(now - self._looked, LOOK_S)
        self._looked, self._used = now, used
        return share > IDLE

    def _look(self) -> None:
        at = time.monotonic()
        try:
            engine = session.engine()
        except NotInitialized:
            return
        pending: Any = engine.pending()
        own = [each for each in pending if engine.rank not in each["missing"]]
        if not own or min(each["seconds"] for each in own) < WAIT_S or _others_run():
            return
        waits = [(each["process_set"], each["name"]) for each in own]
        if self._is_news(str(waits), at):
            deadlocks.send(engine, at, waits, [])

    def _is_news(self, what: str, now: float) -> bool:
        """Tell whether to say it: at once where it is new, then ever more rarely: the core may not have believed it."""
        if what == self._said and now < self._due:
            return False
        self._pause = min(2 * self._pause, MOST_S) if what == self._said else LOOK_S
        self._said, self._due = what, now + self._pause
        return True


def _waits_outside() -> bool:
    """Tell whether the main thread waits for an operation outside of programs."""
    frame = call_stack.main_frame()
    return frame is not None and frame.f_code is handles.synchronize.__code__


def _others_run() -> bool:
    """Tell whether another thread than the main one runs code of the user's."""
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    return any(call_stack.runs_user_code(threads.get(ident), frame) for ident, frame in frames.items() if ident != main)
