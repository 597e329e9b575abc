"""Procedures of a membership: one request each, from its first action to its answer, as a generator of actions.

A procedure yields actions, or None to wait for the next event; it checks its conditions after each event. Here are
their base, the start of a cluster, attachment to a detached one, and detachment; those that change ranks: changes.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
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
    SaveForNextKernel,
    Send,
    Ticket,
    WatchRank,
)
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting import rank_labels
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.channel import messages
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


_HELLO_S = 0.25  # between two greetings at the start
_AGAIN_S = 0.1  # between two greetings when attaching
_ANSWER_S = 10.0  # a living rank that takes longer counts as silent
_KEEP_S = 20.0


class Start(Procedure):
    """Wait until started processes are ranks that can be reached on every channel."""

    def __init__(self, request: int, ranks: RankTable, patience: float) -> None:
        super().__init__(request, ranks)
        self._patience = patience
        self._connected = False
        self._error = ""  # why the start has failed
        self._phase = "controller ready, ranks are importing"

    def observe(self, event: Event) -> None:
        """Record an event."""
        super().observe(event)
        match event:
            case messages.Connected():
                self._connected = True
            case messages.RankExited(rank=rank, status=status):
                self._error = self._error or _exited(rank, status)
            case messages.StartFailed(reason=reason):
                self._error = self._error or f"{reason}."
            case messages.ChannelClosed():
                self._error = self._error or _exited(messages.MPIEXEC, "unknown")

    def run(self) -> Flow[None]:
        """Wait for the controller, the registrations and the hellos, and record the ranks."""
        ranks = self.ranks
        timer = yield from self.timer(self._patience)
        yield from self._await(lambda: self._connected, timer, lambda: "the controller")
        yield self.progress(self._phase)
        for registered in range(1, ranks.n + 1):
            yield from self._await_registrations(registered, timer)
        hellos = yield from self.greet(ranks.all, ("shell", "control"), _HELLO_S, lambda _: self._is_over(timer))
        yield from self._await(lambda: ranks.all <= hellos.keys(), timer, lambda: rank_list(ranks.all - hellos.keys()))
        for rank, hello in sorted(hellos.items()):
            process = ranks.introduce(rank, hello)
            if hello["here"]:
                ranks.here.add(rank)
                yield WatchRank(rank, process.pid)
        yield self.progress(f"{plural(ranks.n, 'rank')} ready")

    def _await_registrations(self, number: int, timer: Ticket) -> Flow[None]:
        ranks = self.ranks
        yield from self._await(
            lambda: len(ranks.registered) >= number, timer, lambda: rank_list(ranks.all - ranks.registered)
        )
        if number == len(ranks.registered) < ranks.n:
            yield self.progress(f"{number} of {ranks.n} ranks ready")

    def _await(self, condition: Callable[[], bool], timer: Ticket, missing: Callable[[], str]) -> Flow[None]:
        in_time = yield from self.until(lambda: bool(self._error) or condition(), timer)
        if self._error:
            raise WithLog(self._error)
        if not in_time:
            late = f"did not come up within {self._patience:g} s (ClusterSpec.start_timeout_s)."
            raise WithLog(f"{missing()} {late}")

    def _is_over(self, timer: Ticket) -> bool:
        return bool(self._error) or self.is_over(timer)


class StartByEngine(Start):
    """Start of a cluster whose processes an engine starts: the ranks have no communicator yet."""

    def __init__(self, request: int, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(request, ranks, patience)
        self._far, self._phase = far, f"controller ready, waiting for {ranks.engine} to start the ranks"

    def run(self) -> Flow[None]:
        """Wait for the ranks, and form their communicator."""
        yield from super().run()
        ranks = self.ranks
        answers = yield from self.rendezvous(ranks.all, far=self._far, check=self._check)
        ranks.apart = False
        for rank, answer in answers.items():
            ranks.members[rank] = replace(ranks.members[rank], device=answer["device"])

    def _check(self) -> None:
        if self._error:
            raise WithLog(self._error)


class Attach(Procedure):
    """Attachment to the ranks of an earlier kernel: ranks whose engine is gone are dead, all others are queried."""

    def run(self) -> Flow[tuple[int, ...]]:
        """Find the living ranks; return those that are silent: stopped, or C code keeps Python's lock."""
        ranks = self.ranks
        ranks.dead |= ranks.all - ranks.registered
        for rank in sorted(ranks.here - ranks.dead):
            yield WatchRank(rank, ranks.members[rank].pid)
        timer = yield from self.timer(_ANSWER_S)
        yield self.progress("asking the ranks")
        living = ranks.all - ranks.dead
        hellos = yield from self.greet(
            living, ("control",), _AGAIN_S, lambda missing: missing <= ranks.dead or self.is_over(timer)
        )
        for rank, hello in hellos.items():
            ranks.introduce(rank, hello)
        return tuple(sorted(living - hellos.keys() - ranks.dead))


class DetachProcedure(Procedure):
    """Detachment: the cluster outlives its kernel from now on."""

    def __init__(self, request: int, ranks: RankTable, wish: messages.Detach, supervisor: int) -> None:
        super().__init__(request, ranks)
        self._wish, self._supervisor = wish, supervisor
        self._error = ""  # why the supervisor cannot detach

    def observe(self, event: Event) -> None:
        """Record an event."""
        super().observe(event)
        if isinstance(event, messages.DetachFailed):
            self._error = event.reason

    def run(self) -> Flow[None]:
        """Store the state of the cluster, and request the detachment from the supervisor."""
        yield SaveForNextKernel()
        yield Send(self._wish)
        if not (yield from self.within(lambda: bool(self.ranks.detached_name or self._error), _KEEP_S)):
            raise ClusterError(f"the ranks' supervisor (process {self._supervisor}) does not answer: is it stopped?")
        if self._error:
            raise ClusterError(f"the ranks cannot be kept: {self._error}")


def _exited(rank: int, status: int | str) -> str:
    if rank == messages.MPIEXEC:
        return f"the ranks ended while they started (mpiexec's status {status})."
    return f"rank {rank} ended while it started (status {status})."
