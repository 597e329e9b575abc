"""Procedures of a membership: one request each, from its first action to its answer, as a generator of actions.

A procedure yields actions, or None to wait for the next event; it checks its conditions after each event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import (
    Action,
    Event,
    FormCommunicator,
    Greet,
    Query,
    RankAnswered,
    ReportProgress,
    Ticket,
)
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting import rank_labels
from hvd_kernel.processes.event_loop import SetTimer, TimerFired

RENDEZVOUS_S = 60.0  # for a rendezvous of all ranks
_T = TypeVar("_T")
Flow = Generator[Action | None, None, _T]


class WithLog(ClusterError):
    """An error that the end of the ranks' log may explain."""


class Procedure:
    """One request and the answers of ranks to its queries."""

    def __init__(self, request: int, ranks: RankTable) -> None:
        self.request = request
        self.ranks = ranks
        self.answers: defaultdict[Ticket, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        self._expired: set[Ticket] = set()
        self._numbers = count()

    def run(self) -> Flow[Any]:
        """Yield the actions; return the answer to the request.

        Raises
        ------
        ClusterError
            If the request cannot be fulfilled.
        """
        raise NotImplementedError

    def observe(self, event: Event) -> None:
        """Record an event."""
        match event:
            case TimerFired(ticket):
                self._expired.add(ticket)
            case RankAnswered(ticket, rank, content):
                self.answers[ticket][rank] = content

    def undo(self) -> Iterator[Action]:
        """Yield the actions that restore the cluster after a cancellation, without waiting."""
        yield from ()

    def ticket(self) -> Ticket:
        """Return a new ticket."""
        return self.request, next(self._numbers)

    def progress(self, text: str) -> Action:
        """Return the action that reports progress."""
        return ReportProgress(self.request, text)

    def timer(self, seconds: float) -> Flow[Ticket]:
        """Set a timer and return its ticket."""
        ticket = self.ticket()
        yield SetTimer(ticket, seconds)
        return ticket

    def is_over(self, timer: Ticket) -> bool:
        """Return whether a timer has fired."""
        return timer in self._expired

    def until(self, condition: Callable[[], bool], timer: Ticket) -> Flow[bool]:
        """Wait until a condition holds or the timer fires; return whether it holds."""
        while not condition():
            if self.is_over(timer):
                return False
            yield None
        return True

    def within(self, condition: Callable[[], bool], seconds: float) -> Flow[bool]:
        """Wait until a condition holds, for at most ``seconds``; return whether it holds."""
        return condition() or (yield from self.until(condition, (yield from self.timer(seconds))))

    def greet(
        self, ranks: set[int], channels: tuple[str, ...], pause: float, enough: Callable[[set[int]], bool]
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Greet ranks repeatedly until all have answered or ``enough(missing)`` is true; return the answers.

        Raises
        ------
        ClusterError
            If a rank has answered with an error: it lacks memory, descriptors or threads.
        """
        ticket = self.ticket()
        answers = self.answers[ticket]
        while not (ranks <= answers.keys() or enough(ranks - answers.keys())):
            yield Greet(ticket, frozenset(ranks & self.ranks.living), channels)
            yield from self.within(lambda: ranks <= answers.keys() or enough(ranks - answers.keys()), pause)
        for rank, hello in sorted(answers.items()):
            if "error" in hello:
                raise WithLog(f"rank {rank} cannot work: {hello['error']}")
        return answers

    def query(
        self, handler: str, ranks: Iterable[int], content: Mapping[str, Any], seconds: float, *, urgent: bool = False
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Send a query to ranks and return the answers of all of them.

        Raises
        ------
        ClusterError
            If a rank has answered with an error, or not within ``seconds``.
        """
        targets, ticket = set(ranks), self.ticket()
        if gone := targets - self.ranks.living:
            raise ClusterError(f"{handler}: {ranks_are(gone)} dead")
        yield Query(ticket, handler, frozenset(targets), content, urgent)
        return (yield from self.await_answers(ticket, handler, targets, seconds))

    def rendezvous(
        self, fresh: Iterable[int], *, far: bool, check: Callable[[], None]
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Form a communicator of all ranks, of which ``fresh`` were in none before; return each rank's answer.

        ``check`` is called at each point where a rank may have died; raises like ``query``.
        """
        ranks = self.ranks
        [place] = (yield from self.query("rendezvous_address", [0], {"far": far}, RENDEZVOUS_S, urgent=True)).values()
        check()
        ranks.generation += 1
        living = {rank: process for rank in ranks.all if (process := ranks.process(rank)) is not None}
        ticket = self.ticket()
        ranks.apart = True  # holds if the rendezvous is interrupted
        yield FormCommunicator(ticket, ranks.generation, living, frozenset(fresh), place)
        answers = yield from self.await_answers(ticket, "rendezvous", ranks.all, RENDEZVOUS_S)
        check()
        return answers

    def await_answers(
        self, ticket: Ticket, handler: str, ranks: set[int], seconds: float
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Wait for the answers of living ranks; raises like ``query``."""
        answers = self.answers[ticket]
        yield from self.within(lambda: not (ranks & self.ranks.living) - answers.keys(), seconds)
        for rank, content in sorted(answers.items()):
            if "error" in content:
                raise ClusterError(f"{handler}: rank {rank}: {content['error']}")
        if missing := ranks - answers.keys():
            raise ClusterError(failure.unanswered(handler, missing, seconds, answers))
        return answers


def ranks_are(ranks: Iterable[int]) -> str:
    """Return "rank 1 is" or "ranks 1-2 are"."""
    every = set(ranks)
    return f"{rank_labels.rank_list(every)} {'are' if len(every) > 1 else 'is'}"
