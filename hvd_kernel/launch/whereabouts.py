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

_PREFIX = "hvdrun: "


class QueryableAgent(Protocol):
    """An agent, which forwards a query to a rank."""

    def send(self, message: Message) -> None:
        """Send it a message."""


class RankMonitor:
    """Queries the ranks through their agents, and reports stalls and stacks on the launcher's stderr."""

    def __init__(self, agents: Sequence[QueryableAgent], first: int, size: int, write: Write, *, watches: bool) -> None:
        """Start monitoring. ``agents``: one per rank; ``first``: the number of the first rank."""
        self._agents, self._first, self._write = agents, first, write
        ranks = range(first, first + len(agents))
        self._stalls = JobStalls(ranks, size, self._query, self._report, watches=watches)
        self._apart = TrainingApart(ranks)
        self._report_requested = threading.Event()  # by SIGQUIT

    def receive(self, message: RankState) -> None:
        """Record the state of a rank that its agent reports."""
        state = decode(message.state)
        rank = message.rank + self._first
        if state["state"] == "connected":
            self._stalls.connected(rank, time.monotonic())
        else:
            self._stalls.answered(whereabouts(rank, state), time.monotonic())

    def compare(self, rank: int, stepped: Stepped) -> None:
        """Compare the optimizers of a rank with those of the others; warn once in a job."""
        state = "idle" if stepped.over else "compute"
        sample = MetricsSample(rank + self._first, time.monotonic(), state, optimizers=stepped.optimizers)
        if warning := self._apart.observe(sample):
            self._write(f"{warning}\n".encode())

    def on_exit(self, rank: int) -> None:
        """Record a rank's exit."""
        self._stalls.exited(rank + self._first)

    def tick(self, now: float) -> float:
        """Run the checks that are due; return the number of seconds until the next ones, at most."""
        if self._report_requested.is_set():
            self._report_requested.clear()
            self._stalls.report(now)
        self._stalls.tick(now)
        return max(0.0, self._stalls.due() - now)

    def request_report(self) -> None:
        """Request a report on every rank's stack, at the next ``tick``. May be called in a signal handler."""
        self._report_requested.set()

    def _query(self, rank: int, patience_s: float | None) -> None:
        self._agents[rank - self._first].send(AskRank(rank - self._first, patience_s))

    def _report(self, text: str) -> None:
        self._write(f"{_PREFIX}{text}".encode())


@contextmanager
def on_sigquit(request_report: Callable[[], None]) -> Iterator[None]:
    """Call ``request_report`` on SIGQUIT (Ctrl-backslash), unless the program has a handler of its own.

    SIG_IGN does not count as one: a shell sets it for commands that a script starts in the background.
    """
    before = signal.getsignal(signal.SIGQUIT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before not in {signal.SIG_DFL, signal.SIG_IGN}:
        yield
        return
    signal.signal(signal.SIGQUIT, lambda _number, _frame: request_report())
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)


def whereabouts(rank: int, state: dict[str, Any]) -> Whereabouts:
    """Return where a rank is, from the state that its agent reports."""
    if "stack" in state:
        lines = state["stack"].splitlines()
        return Whereabouts(rank, "silent", frames=python_calls(lines, {}), native=c_functions(lines))
    return replace(from_wire(Whereabouts, {"rank": rank} | state), rank=rank)
