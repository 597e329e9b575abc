"""Deadlock detection, the part of each rank: it reports to the core when its program cannot call a collective any more.

A rank is stuck while its main thread waits in one collective, and ended when a notebook's cell has ended on it; in both
cases nothing else of the user's may run that could call. Such a rank sends a report, and rank 0 compares the reports of
all ranks (native/engine/controller/deadlock.h): operations that can never complete fail with Mismatch on every rank
that waits for them. A report that may be wrong is not sent: the stall check covers ranks that are only late.

Operations inside of graphs are requested by threads of their framework. TensorFlow and JAX find out what their graphs
may still request (tensorflow/blocked.py, jax/blocked.py) and report by ``send``.

Terms.
  program   what a rank runs: a script, or the cells of a notebook
  run       number of a cell among those of the cluster; 0: a script
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel.core.stacks import call_stack

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

DEADLOCK_S = 5.0
"""Seconds for which a rank is stuck, or has ended its cell, before it reports that."""

LOOK_S = 0.5
"""Seconds between two checks of the main thread; a check takes a few microseconds unless it waits."""

MOST_S = 10.0
"""Longest pause between two equal reports: rank 0 drops a report that arrives together with other requests."""

BUSY = 0.2
"""Share of a processor above which the main thread copies data and does not wait, or a graph runs after its cell."""

_POLLS = frozenset({"poll"})  # functions that call the core and do not wait there
_MAX_PLACE = 80

CurrentEngine = Callable[[], "Engine | None"]


class WatchedProgram:
    """What the main thread of this rank runs; this class stands for a script."""

    @property
    def run(self) -> int | None:
        """The cell that runs, or that has ended; None: neither, such as a request of the notebook."""
        return 0

    @property
    def is_over(self) -> bool:
        """True between two cells, as long as nothing that the cell has left behind could call a collective."""
        return False

    def cell_of(self, _file: str) -> str | None:
        """Return the cell whose code has this file name; None: it is a plain file."""
        return None


@dataclass(frozen=True)
class Look:
    """The state of this rank at one moment."""

    at: float  # time.monotonic()
    run: int | None
    ended: bool = False
    call: tuple[int, int] | None = None  # the call of the core in which the main thread waits: frame, instruction
    waits: tuple[tuple[int, str], ...] = ()  # process set and name of each operation that this rank has requested
    seconds: float = 0.0  # age of the youngest of them
    others: bool = False  # other code of the user's could call, or interrupt the wait
    place: str = ""

    @property
    def state(self) -> tuple[Any, ...] | None:
        """What has to stay the same for DEADLOCK_S; None: the rank may call a collective."""
        if self.run is None or self.others:
            return None
        if self.ended:
            return None if self.waits else ("ended", self.run)
        return ("waits", self.run, self.call, self.waits) if self.call and self.waits else None


class Decision:
    """Decides from consecutive looks when a report is due. Pure: the time is part of a look."""

    def __init__(self) -> None:
        self._state: tuple[Any, ...] | None = None
        self._due = self._pause = 0.0

    def is_due(self, look: Look) -> bool:
        """Return whether to report this state now: when it has lasted, then less and less often."""
        if look.state != self._state:
            self._state, self._due, self._pause = look.state, look.at + DEADLOCK_S, LOOK_S
        if look.state is None or look.at < self._due or (look.waits and look.seconds < DEADLOCK_S):
            return False
        self._pause = min(2 * self._pause, MOST_S)
        self._due = look.at + self._pause
        return True


class _Watch:
    """Looks at the main thread for the whole life of the process."""

    def __init__(self, engine: CurrentEngine) -> None:
        self._engine = engine
        self._decision = Decision()
        self._used = self._ran = 0.0

    def run(self) -> None:
        never = threading.Event()
        while not never.wait(LOOK_S):
            with suppress(Exception):  # a frame that is gone, or an engine that ends: the next look finds out
                self._check()

    def _check(self) -> None:
        engine = self._engine()
        look = Look(time.monotonic(), None) if engine is None else self._observe(engine)
        if engine is None or not self._decision.is_due(look):
            return
        if look.ended:
            _report_end(engine, look)
        else:
            send(engine, look.at, look.waits, (), _place())

    def _observe(self, engine: Engine) -> Look:
        busy, runs = self._is_busy()
        look = Look(time.monotonic(), _program.run)
        if _program.is_over:
            others = (bool(_frameworks) and busy) or others_may_call()
            return replace(look, ended=True, waits=_requested(engine)[0], others=others)
        frame = call_stack.main_frame()
        if frame is None or _frameworks or runs or not call_stack.inside_core() or frame.f_code.co_name in _POLLS:
            return look
        waits, seconds = _requested(engine)
        call = id(frame), frame.f_lasti
        return replace(look, call=call, waits=waits, seconds=seconds, others=others_may_call() or _has_alarm())

    def _is_busy(self) -> tuple[bool, bool]:
        """Return whether this process, and whether its main thread, has computed since the previous look."""
        used, ran = self._used, self._ran
        main = threading.main_thread().ident or 0
        self._used, self._ran = time.process_time(), time.clock_gettime(time.pthread_getcpuclockid(main))
        return self._used - used > BUSY * LOOK_S, self._ran - ran > BUSY * LOOK_S


_program = WatchedProgram()
_frameworks: set[str] = set()  # whose graphs request operations
_lock = threading.Lock()  # of the report that this rank has ended its cell, and of its withdrawal
_reported: Engine | None = None  # the engine that has this report
_requests = 0  # of the notebook, that the main thread serves
_watching_in = 0  # the process that has a thread: a forked child has none


def watch(engine: CurrentEngine) -> None:
    """Start the thread that looks at this rank, once per process."""
    global _watching_in  # noqa: PLW0603 - of the process
    if _watching_in != os.getpid():
        _watching_in = os.getpid()
        threading.Thread(target=_Watch(engine).run, name="hvd-deadlock", daemon=True).start()


def set_program(program: WatchedProgram) -> None:
    """Watch this program from now on."""
    global _program  # noqa: PLW0603 - of the process
    _program = program


def leave_waits_to(framework: str) -> None:
    """Report no waits of the main thread: graphs of the framework run beside it, and it reports what they wait for."""
    _frameworks.add(framework)


def send(engine: Any, at: float, waits: Sequence[tuple[int, str]], may_ask: Sequence[str], place: str = "") -> None:
    """Report that this rank waits for these operations; ``place``: at this line of the user's code."""
    engine.blocked(at, waits, may_ask, _program.run or 0, place)


@contextmanager
def serving() -> Iterator[None]:
    """Mark that the main thread serves a request until the block ends; withdraw the report that its cell has ended."""
    global _reported, _requests  # noqa: PLW0603 - of the process
    with _lock:
        _requests += 1
        if _reported is not None:
            _reported.resumed()
        _reported = None
    try:
        yield
    finally:
        with _lock:
            _requests -= 1


def _report_end(engine: Engine, look: Look) -> None:
    global _reported  # noqa: PLW0603 - of the process
    with _lock:
        if not _requests and _reported is not engine:
            engine.blocked(look.at, [], [], look.run or 0)
            _reported = engine


def others_may_call() -> bool:
    """Return whether another thread than the main one runs code of the user's, or will at a set time."""
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    return any(
        isinstance(threads.get(ident), threading.Timer)
        or any(not call_stack.package_of(call.code.co_filename) for _, call in call_stack.calls(frame))
        for ident, frame in frames.items()
        if ident not in {main, threading.get_ident()}
    )


def _has_alarm() -> bool:
    """Return whether a timer of the user's may end the wait."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _requested(engine: Engine) -> tuple[tuple[tuple[int, str], ...], float]:
    """Return the operations that this rank has requested, and the age of the youngest."""
    pending: Any = engine.pending()
    requested = [operation for operation in pending if engine.rank not in operation["missing"]]
    waits = tuple(sorted((operation["process_set"], operation["name"]) for operation in requested))
    return waits, min((operation["seconds"] for operation in requested), default=0.0)


def _place() -> str:
    """Return the line of the user's code at which the main thread is: ``cell 3:2``."""
    calls = [call for _, call in call_stack.calls(call_stack.main_frame())][::-1]
    users = [frame for frame in call_stack.frames(calls, _program.cell_of) if frame.own]
    return users[-1].place[:_MAX_PLACE] if users else ""
