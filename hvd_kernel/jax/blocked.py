"""Deadlock detection in a rank: report to the core that this rank is blocked, so that a deadlock becomes an error.

Programs run one after the other, so a rank that waits in a program requests only the operations that are left in it;
and once all of XLA's threads are idle, none of these can start before the awaited operation has ended. Outside of
programs a rank that waits for an operation requests nothing. A thread checks this periodically. The core compares the
ranks (native/engine/controller/stall.h). If other threads run the user's code, or JAX computed before this package
was imported and runs several programs at a time, nothing is reported; the stall check covers these cases.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from hvd_kernel.core import call_stack, deadlocks, handles, session
from hvd_kernel.errors import NotInitialized

POLL_S = 0.15
"""Seconds between two checks; a check that finds no waiting operation costs some microseconds."""

WAIT_S = 0.4
"""Seconds after which a waiting operation is reported: a deadlock becomes an error within a second."""

IDLE = 0.2
"""The share of a processor below which none of XLA's threads computes."""

MOST_S = 10.0
"""Longest pause, in seconds, between two reports of the same state."""


def watch(under_way: Any) -> threading.Thread:
    """Start the thread; ``under_way()`` is true while an operation of a program is in progress."""
    deadlocks.delegate_waits_to("jax")
    thread = threading.Thread(target=_Watch(under_way).run, name="hvd-blocked", daemon=True)
    thread.start()
    return thread


class _Watch:
    def __init__(self, under_way: Any) -> None:
        self._under_way = under_way
        self._reported, self._due, self._pause = "", 0.0, 0.0
        self._checked, self._used = time.monotonic(), time.process_time()

    def run(self) -> None:
        never = threading.Event()
        while not never.wait(POLL_S):
            busy = self._busy()
            if (self._under_way() or _waits_outside()) and not busy:
                self._report()
            else:
                self._reported = ""

    def _busy(self) -> bool:
        """Return whether this process has computed since the last check."""
        now, used = time.monotonic(), time.process_time()
        share = (used - self._used) / max(now - self._checked, POLL_S)
        self._checked, self._used = now, used
        return share > IDLE

    def _report(self) -> None:
        """Report the operations that this rank waits for, if they have waited for ``WAIT_S``."""
        at = time.monotonic()
        try:
            engine = session.engine()
        except NotInitialized:
            return
        pending: Any = engine.pending()
        awaited = [operation for operation in pending if engine.rank not in operation["missing"]]
        if not awaited or min(operation["seconds"] for operation in awaited) < WAIT_S or _others_run():
            return
        waits = [(operation["process_set"], operation["name"]) for operation in awaited]
        if self._is_due(str(waits), at):
            deadlocks.send(engine, at, waits, [])

    def _is_due(self, state: str, now: float) -> bool:
        """Return whether to report a state: a new one at once, then at growing intervals, as the core may reject it."""
        if state == self._reported and now < self._due:
            return False
        self._pause = min(2 * self._pause, MOST_S) if state == self._reported else POLL_S
        self._reported, self._due = state, now + self._pause
        return True


def _waits_outside() -> bool:
    """Return whether the main thread waits for an operation outside of programs."""
    frame = call_stack.main_frame()
    return frame is not None and frame.f_code is handles.synchronize.__code__


def _others_run() -> bool:
    """Return whether a thread other than the main thread runs the user's code."""
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    return any(call_stack.runs_user_code(threads.get(ident), frame) for ident, frame in frames.items() if ident != main)
