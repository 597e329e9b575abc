"""Procedures of a membership: one request each, from its first action to its answer, as a generator of actions.

A procedure yields what is to be done, or None to wait for the next event; conditions are looked at after each one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import (
    Action,
    Ask,
    Event,
    FormCommunicator,
    Greet,
    RankAnswered,
    Tell,
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
    """What has been asked and what has come of it."""

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
            It cannot be fulfilled.
        """
        raise NotImplementedError

    def hear(self, event: Event) -> None:
        """Take in what has happened."""
        match event:
            case TimerFired(ticket):
                self._expired.add(ticket)
            case RankAnswered(ticket, rank, content):
                self.answers[ticket][rank] = content

    def undo(self) -> Iterator[Action]:
        """Yield what restores the cluster after a cancellation; nothing is waited for."""
        yield from ()

    def ticket(self) -> Ticket:
        """Return a new one."""
        return self.request, next(self._numbers)

    def tell(self, text: str) -> Action:
        """Return the action that says how far it is."""
        return Tell(self.request, text)

    def timer(self, seconds: float) -> Flow[Ticket]:
        """Set a timer."""
        ticket = self.ticket()
        yield SetTimer(ticket, seconds)
        return ticket

    def is_over(self, timer: Ticket) -> bool:
        """Tell whether its time is over."""
        return timer in self._expired

    def until(self, condition: Callable[[], bool], timer: Ticket) -> Flow[bool]:
        """Wait for a condition; return whether it holds when the timer fires at the latest."""
        while not condition():
            if self.is_over(timer):
                return False
            yield None
        return True

    def within(self, condition: Callable[[], bool], seconds: float) -> Flow[bool]:
        """Wait for a condition; return whether it has come to hold in time."""
        return condition() or (yield from self.until(condition, (yield from self.timer(seconds))))

    def greet(
        self, ranks: set[int], channels: tuple[str, ...], pause: float, enough: Callable[[set[int]], bool]
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Greet ranks, with pauses, until all have answered or ``enough`` says so of the missing; return answers.

        Raises
        ------
        ClusterError
            One has answered with an error: it lacks memory, descriptors or threads.
        """
        ticket = self.ticket()
        answers = self.answers[ticket]
        while not (ranks <= answers.keys() or enough(ranks - answers.keys())):
            yield Greet(ticket, frozenset(ranks & self.ranks.living), channels)
            yield from self.within(lambda: ranks <= answers.keys() or enough(ranks - answers.keys()), pause)
        for rank, said in sorted(answers.items()):
            if "error" in said:
                raise WithLog(f"rank {rank} cannot work: {said['error']}")
        return answers

    def ask(
        self, handler: str, ranks: Iterable[int], content: Mapping[str, Any], seconds: float, *, urgent: bool = False
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Put a question to ranks, all of which have to answer.

        Raises
        ------
        ClusterError
            One has answered with an error, or not at all.
        """
        asked, ticket = set(ranks), self.ticket()
        if gone := asked - self.ranks.living:
            raise ClusterError(f"{handler}: {named(gone)} dead")
        yield Ask(ticket, handler, frozenset(asked), content, urgent)
        return (yield from self.answered(ticket, handler, asked, seconds))

    def rendezvous(
        self, fresh: Iterable[int], *, far: bool, check: Callable[[], None]
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Have all ranks form a communicator, in which these have met nobody yet; return what each says of itself.

        ``check`` is called where a rank may have died; raises as ``ask``.
        """
        ranks = self.ranks
        [place] = (yield from self.ask("rendezvous_address", [0], {"far": far}, RENDEZVOUS_S, urgent=True)).values()
        check()
        ranks.generation += 1
        living = {rank: who for rank in ranks.everybody if (who := ranks.process(rank)) is not None}
        ticket = self.ticket()
        ranks.apart = True  # whatever interrupts this
        yield FormCommunicator(ticket, ranks.generation, living, frozenset(fresh), place)
        answers = yield from self.answered(ticket, "rendezvous", ranks.everybody, RENDEZVOUS_S)
        check()
        return answers

    def answered(
        self, ticket: Ticket, handler: str, ranks: set[int], seconds: float
    ) -> Flow[dict[int, Mapping[str, Any]]]:
        """Wait for the answers of ranks as long as they live; raises as ``ask``."""
        answers = self.answers[ticket]
        yield from self.within(lambda: not (ranks & self.ranks.living) - answers.keys(), seconds)
        for rank, content in sorted(answers.items()):
            if "error" in content:
                raise ClusterError(f"{handler}: rank {rank}: {content['error']}")
        if missing := ranks - answers.keys():
            raise ClusterError(failure.unanswered(handler, missing, seconds, answers))
        return answers


def named(ranks: Iterable[int]) -> str:
    """Return "rank 1 is" or "ranks 1-2 are"."""
    every = set(ranks)
    return f"{rank_labels.rank_list(every)} {'are' if len(every) > 1 else 'is'}"
