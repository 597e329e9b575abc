"""Deadlock detection on each rank: report to the core that this rank's program can no longer call a collective.

A rank is stuck while its main thread waits in one collective, and ended when a notebook's cell has ended on it,
provided that no other code of the user's runs that could call a collective. Such a rank sends a report, and rank 0
compares the reports of all ranks (native/engine/controller/stall.h): operations that can never complete fail with
Mismatch on every rank that waits for them. A report that may be wrong is not sent: the stall check covers ranks that
are only late.

Operations inside graphs are requested by threads of their framework. TensorFlow and JAX determine what their graphs may
still request (tensorflow/blocked.py, jax/blocked.py) and report with ``send``.

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

from hvd_kernel.core import call_stack
from hvd_kernel.frameworks import torch_waits

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

DEADLOCK_S = 5.0
"""Seconds for which a rank is stuck, or has ended its cell, before it reports it."""

POLL_S = 0.5
"""Seconds between two samples of the main thread; a sample takes a few microseconds unless the thread waits."""

MOST_S = 10.0
"""Longest pause between two equal reports: rank 0 drops a report that arrives together with other requests."""

BUSY = 0.2
"""Share of a processor above which the main thread copies data instead of waiting, or a graph outlasts its cell."""

_POLLS = frozenset({"poll"})  # functions that call the core and do not wait there
_MAX_PLACE = 80

CurrentEngine = Callable[[], "Engine | None"]


class WatchedProgram:
    """The program on the main thread of this rank; this class describes a script."""

    @property
    def run(self) -> int | None:
        """The cell that runs or has ended; None if there is neither, as during a request of the notebook."""
        return 0

    @property
    def is_over(self) -> bool:
        """True between two cells, if no task or callback left by the last cell could call a collective."""
        return False

    def cell_of(self, _file: str) -> str | None:
        """Return the cell whose code has this file name; None for an ordinary file."""
        return None


@dataclass(frozen=True)
class StateSample:
    """The state of this rank at one moment."""

    at: float  # time.monotonic()
    run: int | None
    ended: bool = False
    call: tuple[int, int] | None = None  # the call of the core in which the main thread waits: frame, instruction
    waits: tuple[tuple[int, str], ...] = ()  # process set and name of each operation that this rank has requested
    seconds: float = 0.0  # age of the youngest of them
    may_progress: bool = False  # other code of the user's could call a collective, or interrupt the wait
    place: str = ""

    @property
    def state(self) -> tuple[Any, ...] | None:
        """The part that must not change for DEADLOCK_S; None if the rank may call a collective."""
        if self.run is None or self.may_progress:
            return None
        if self.ended:
            return None if self.waits else ("ended", self.run)
        return ("waits", self.run, self.call, self.waits) if self.call and self.waits else None


class Decision:
    """Decides from consecutive samples when a report is due. Pure: the time is part of a sample."""

    def __init__(self) -> None:
        self._state: tuple[Any, ...] | None = None
        self._due = self._pause = 0.0

    def is_due(self, sample: StateSample) -> bool:
        """Return whether to report this state now: once it has lasted for DEADLOCK_S, then at growing intervals."""
        if sample.state != self._state:
            self._state, self._due, self._pause = sample.state, sample.at + DEADLOCK_S, POLL_S
        if sample.state is None or sample.at < self._due or (sample.waits and sample.seconds < DEADLOCK_S):
            return False
        self._pause = min(2 * self._pause, MOST_S)
        self._due = sample.at + self._pause
        return True


class _Watch:
    """Polls the main thread for the whole life of the process."""

    def __init__(self, engine: CurrentEngine) -> None:
        self._engine = engine
        self._decision = Decision()
        self._used = self._ran = 0.0

    def run(self) -> None:
        never = threading.Event()
        while not never.wait(POLL_S):
            with suppress(Exception):  # a frame has returned, or the engine ends: the next poll finds out
                self._check()

    def _check(self) -> None:
        engine = self._engine()
        sample = StateSample(time.monotonic(), None) if engine is None else self._sample(engine)
        if engine is None or not self._decision.is_due(sample):
            return
        if sample.ended:
            _report_end(engine, sample)
        else:
            send(engine, sample.at, sample.waits, (), _place())

    def _sample(self, engine: Engine) -> StateSample:
        process_busy, main_busy = self._is_busy()
        sample = StateSample(time.monotonic(), _program.run)
        if _program.is_over:
            may_progress = (bool(_frameworks) and process_busy) or other_threads_may_call()
            return replace(sample, ended=True, waits=_requested(engine)[0], may_progress=may_progress)
        waits, seconds = _requested(engine)
        call = _waiting_call() if waits and not (_frameworks or main_busy) else None
        if call is None:
            return sample
        may_progress = other_threads_may_call() or _has_alarm()
        return replace(sample, call=call, waits=waits, seconds=seconds, may_progress=may_progress)

    def _is_busy(self) -> tuple[bool, bool]:
        """Return whether this process, and whether its main thread, has computed since the previous sample."""
        used, ran = self._used, self._ran
        main = threading.main_thread().ident or 0
        self._used, self._ran = time.process_time(), time.clock_gettime(time.pthread_getcpuclockid(main))
        return self._used - used > BUSY * POLL_S, self._ran - ran > BUSY * POLL_S


_program = WatchedProgram()
_frameworks: set[str] = set()  # those whose graphs request operations
_lock = threading.Lock()  # protects the report that this rank has ended its cell, and its withdrawal
_reported: Engine | None = None  # the engine that received this report
_requests = 0  # of the notebook, being served by the main thread
_watching_in = 0  # the process that has a thread: a forked child has none


def watch(engine: CurrentEngine) -> None:
    """Start the thread that polls this rank, once per process."""
    global _watching_in  # noqa: PLW0603 - of the process
    if _watching_in != os.getpid():
        _watching_in = os.getpid()
        threading.Thread(target=_Watch(engine).run, name="hvd-deadlock", daemon=True).start()


def set_program(program: WatchedProgram) -> None:
    """Set the program whose state is sampled from now on."""
    global _program  # noqa: PLW0603 - of the process
    _program = program


def delegate_waits_to(framework: str) -> None:
    """Stop reporting waits of the main thread: the framework reports the waits of its graphs, which run beside it."""
    _frameworks.add(framework)


def send(engine: Any, at: float, waits: Sequence[tuple[int, str]], may_request: Sequence[str], place: str = "") -> None:
    """Report the operations that this rank waits for.

    ``may_request``: last parts of the names it may still request; ``place``: the line of the user's code that waits.
    """
    engine.blocked(at, waits, may_request, _program.run or 0, place)


@contextmanager
def serving() -> Iterator[None]:
    """Mark the main thread as serving a request inside the block; withdraw the report that its cell has ended."""
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


def _report_end(engine: Engine, sample: StateSample) -> None:
    global _reported  # noqa: PLW0603 - of the process
    with _lock:
        if not _requests and _reported is not engine:
            engine.blocked(sample.at, [], [], sample.run or 0)
            _reported = engine


def other_threads_may_call() -> bool:
    """Return whether a thread other than the main one runs code of the user's, or has a timer to run it."""
    main = threading.main_thread().ident
    threads = {thread.ident: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    frames.pop(main or 0, None)  # its variables must not outlive their function here
    return any(
        isinstance(threads.get(ident), threading.Timer)
        or any(not call_stack.package_of(call.code.co_filename) for _, call in call_stack.calls(frame))
        for ident, frame in frames.items()
        if ident not in {main, threading.get_ident()}
    )


def _waiting_call() -> tuple[int, int] | None:
    """Return frame and instruction of the call in which the main thread, which is idle, waits; None if it does not.

    The call is one of the core, or of torch, whose futures of our operations are completed by another thread.

    The frame itself is not kept: a frame that another thread holds keeps its variables, and with a loss its graph.
    """
    frame = call_stack.main_frame()
    if frame is None or frame.f_code.co_name in _POLLS:
        return None
    return (id(frame), frame.f_lasti) if call_stack.inside_core() or torch_waits.may_wait(frame) else None


def _has_alarm() -> bool:
    """Return whether an interval timer of the user's may interrupt the wait."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _requested(engine: Engine) -> tuple[tuple[tuple[int, str], ...], float]:
    """Return the operations that this rank has requested, and the age of the youngest."""
    pending: Any = engine.pending()
    requested = [operation for operation in pending if engine.rank not in operation["missing"]]
    waits = tuple(sorted((operation["process_set"], operation["name"]) for operation in requested))
    return waits, min((operation["seconds"] for operation in requested), default=0.0)


def _place() -> str:
    """Return the line of the user's code that the main thread executes, such as ``cell 3:2``."""
    calls = [call for _, call in call_stack.calls(call_stack.main_frame())][::-1]
    users = [frame for frame in call_stack.frames(calls, _program.cell_of) if frame.is_user_code]
    return users[-1].place[:_MAX_PLACE] if users else ""
