"""Cancellation of a job by a signal: SIGINT, SIGTERM or SIGHUP to hvdrun, SIGTERM or SIGHUP to one of its agents.

The ranks get SIGTERM and the grace period (jobs/grace.py), then SIGKILL; a later signal kills them at once. While the
ranks run, a signal is handled in the job's loop. Before that it raises ``Signalled``, which ends the start.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import NoReturn, Self

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.processes.channel.messages import is_repeated
from hvd_kernel.processes.event_loop import EventLoop

_LATE = "did not end within {:g} s (--grace-period)"
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(KeyboardInterrupt):
    """A signal that ends hvdrun before its ranks run, like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(cancelled_text(number, has_ranks=False))
        self.number = number


class JobCancelled(ClusterError):
    """A signal to hvdrun or to an agent has cancelled the job; all ranks have ended."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


def cancelled_text(
    number: int, host: str = "", killed: Sequence[int] = (), grace_s: float | None = None, *, has_ranks: bool = True
) -> str:
    """Return how a signal has cancelled a job.

    Parameters
    ----------
    number
        The signal.
    host
        The host whose agent got it; empty: hvdrun did.
    killed, grace_s
        The ranks that were killed after the grace period, and its seconds; None: at another signal.
    has_ranks
        False if the job had no ranks yet.
    """
    where = f" on {host}" if host else ""
    late = ""
    if killed:
        ranks = rank_list(killed)
        late = f"; another signal has killed {ranks}" if grace_s is None else f"; {ranks} {_LATE.format(grace_s)}"
    return f"cancelled by signal {signal.Signals(number).name}{where}{late}{'; all ranks have ended.' * has_ranks}"


class Cancellation:
    """The signal that has cancelled a running job, if any. ``on_signal``: also a later one that kills the ranks."""

    def __init__(self, terminate: Callable[[], None], kill: Callable[[], None]) -> None:
        self.number = 0  # of the signal; 0: none
        self.host = ""  # whose agent got it; empty: hvdrun did
        self.is_killed = False  # another signal has killed the ranks
        self._terminate, self._kill = terminate, kill
        self._begin = 0.0

    def on_signal(self, number: int, host: str = "") -> None:
        """Terminate the ranks; at a later signal kill them."""
        now = time.monotonic()
        if not self.number:
            self.number, self.host, self._begin = number, host, now
            self._terminate()
        elif not host and not is_repeated(number, now - self._begin):
            self.kill()

    def kill(self) -> None:
        """Kill the ranks: another signal has arrived here, or at an agent."""
        self.is_killed = True
        self._kill()

    def error(self, killed: Sequence[int], grace_s: float) -> JobCancelled:
        """Return the error of the cancelled job, ``killed``: its ranks that were killed."""
        text = cancelled_text(self.number, self.host, killed, None if self.is_killed else grace_s)
        return JobCancelled(self.number, text)


def raise_on_signals() -> None:
    """Raise ``Signalled`` when a signal cancels this process, except for those that are ignored, as by nohup."""
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    for other in _NUMBERS:  # another signal must not interrupt the clean-up
        if signal.getsignal(other) is _raise:
            signal.signal(other, _ignore)
    raise Signalled(number)


def ignore_signals() -> None:
    """Ignore signals that would cancel the job for the rest of this process: the job has been cancelled.

    Python would reset handlers of its own while it exits, and a signal would then replace the status.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) in {_raise, _ignore}:
            signal.signal(number, signal.SIG_IGN)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; not SIG_IGN, which processes that are started would inherit."""


class SignalHandlers:
    """The handlers of signals that cancel a job, from its start to its end, where ``raise_on_signals`` has set any."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._ours: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._ours = [number for number in _NUMBERS if signal.getsignal(number) is _raise]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._set(_raise)

    def pass_to(self, on_signal: Callable[[int], None]) -> None:
        """Pass signals to a function in the loop from now on: the ranks run."""

        def handle(number: int, _frame: FrameType | None) -> None:
            self._loop.call_soon_threadsafe(partial(on_signal, number))

        self._set(handle)

    def ignore(self) -> None:
        """Ignore signals from now on: the ranks have ended."""
        self._set(_ignore)

    def _set(self, handler: Callable[[int, FrameType | None], None]) -> None:
        for number in self._ours:
            if signal.getsignal(number) is not _ignore or handler is _raise:
                signal.signal(number, handler)
