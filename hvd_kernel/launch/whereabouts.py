"""Stall monitor of a job's ranks, between the agents and the launcher's stderr."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from hvd_kernel.diagnosis.job_stalls import JobStalls
from hvd_kernel.diagnosis.training_apart import TrainingApart
from hvd_kernel.diagnosis.written_stacks import c_functions, python_calls
from hvd_kernel.launch.line_output import Write
from hvd_kernel.processes.channel.messages import AskRank, Message, RankState
from hvd_kernel.processes.rank_channel import decode
from hvd_kernel.protocol.elastic import Stepped
from hvd_kernel.protocol.messages import MetricsSample, Whereabouts, from_wire

_SAYS = "hvdrun: "


class Askable(Protocol):
    """An agent, which passes a question on to a rank."""

    def send(self, message: Message) -> None:
        """Tell it something."""


class RankMonitor:
    """Asks the ranks through their agents, and writes what is to be said of them."""

    def __init__(self, home: Sequence[Askable], first: int, size: int, write: Write, *, watches: bool) -> None:
        """Begin. ``home``: the agent of each rank; ``first``: the number of the first of them."""
        self._home, self._first, self._write = home, first, write
        ranks = range(first, first + len(home))
        self._stalls = JobStalls(ranks, size, self._ask, self._tell, watches=watches)
        self._apart = TrainingApart(ranks)
        self._wanted = threading.Event()  # a report, on SIGQUIT

    def receive(self, message: RankState) -> None:
        """Take what an agent tells of a rank."""
        told = decode(message.state)
        rank = message.rank + self._first
        if told["state"] == "connected":
            self._stalls.connected(rank, time.monotonic())
        else:
            self._stalls.answered(whereabouts(rank, told), time.monotonic())

    def compare(self, rank: int, stepped: Stepped) -> None:
        """Compare the optimizers of a rank with those of the others; warn once in a job."""
        state = "idle" if stepped.over else "compute"
        sample = MetricsSample(rank + self._first, time.monotonic(), state, optimizers=stepped.optimizers)
        if warning := self._apart.observe(sample):
            self._write(f"{warning}\n".encode())

    def ended(self, rank: int) -> None:
        """Take note of a rank's end."""
        self._stalls.ended(rank + self._first)

    def tick(self, now: float) -> float:
        """Do what is due; return how many seconds there are to the next time, at most."""
        if self._wanted.is_set():
            self._wanted.clear()
            self._stalls.report(now)
        self._stalls.tick(now)
        return max(0.0, self._stalls.due() - now)

    def want(self) -> None:
        """Have every rank's stack told, at the next ``tick``. Signal handlers."""
        self._wanted.set()

    def _ask(self, rank: int, patience_s: float | None) -> None:
        self._home[rank - self._first].send(AskRank(rank - self._first, patience_s))

    def _tell(self, text: str) -> None:
        self._write(f"{_SAYS}{text}".encode())


@contextmanager
def on_sigquit(want: Callable[[], None]) -> Iterator[None]:
    """Have SIGQUIT (Ctrl-backslash) write where all ranks are, unless the program has a use of its own for it.

    That a shell has it ignored, as in what a script starts in the background, is no use of the program's.
    """
    before = signal.getsignal(signal.SIGQUIT)
    mine = threading.current_thread() is threading.main_thread()
    if not mine or before not in {signal.SIG_DFL, signal.SIG_IGN}:
        yield
        return
    signal.signal(signal.SIGQUIT, lambda _number, _frame: want())
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)


def whereabouts(rank: int, told: dict[str, Any]) -> Whereabouts:
    """Return where a rank is, of what its agent tells."""
    if "stack" in told:
        lines = told["stack"].splitlines()
        return Whereabouts(rank, "silent", frames=python_calls(lines, {}), native=c_functions(lines))
    return replace(from_wire(Whereabouts, {"rank": rank} | told), rank=rank)
