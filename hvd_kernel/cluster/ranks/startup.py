"""Start of a cluster, the way back to a detached one, and its detachment, as procedures of the membership."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hvd_kernel.cluster.ranks.events import Event, SaveForNextKernel, Send, Ticket, WatchRank
from hvd_kernel.cluster.ranks.procedure import Flow, Procedure, WithLog
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting import rank_labels
from hvd_kernel.processes.channel import messages

_HELLO_S = 0.25  # between two greetings at the start
_AGAIN_S = 0.1  # and on the way back
_ANSWER_S = 10.0  # after it a rank that lives is silent
_KEEP_S = 20.0


class Start(Procedure):
    """From processes that have just been started to ranks that answer on every channel."""

    def __init__(self, request: int, ranks: RankTable, patience: float) -> None:
        super().__init__(request, ranks)
        self._patience = patience
        self._connected = False
        self._ended = ""
        self._waits_for = "controller ready, ranks are importing"

    def hear(self, event: Event) -> None:
        """Take in what has happened."""
        super().hear(event)
        match event:
            case messages.Connected():
                self._connected = True
            case messages.RankExited(rank=rank, status=status):
                self._ended = self._ended or _ended(rank, status)
            case messages.StartFailed(why=why):
                self._ended = self._ended or f"{why}."
            case messages.ChannelClosed():
                self._ended = self._ended or _ended(messages.MPIEXEC, "unknown")

    def run(self) -> Flow[None]:
        """Come to know the ranks."""
        ranks = self.ranks
        timer = yield from self.timer(self._patience)
        yield from self._come(lambda: self._connected, timer, lambda: "the controller")
        yield self.tell(self._waits_for)
        for known in range(1, ranks.n + 1):
            yield from self._registered(known, timer)
        greeted = yield from self.greet(ranks.everybody, ("shell", "control"), _HELLO_S, lambda _: self._is_over(timer))
        yield from self._come(
            lambda: ranks.everybody <= greeted.keys(), timer, lambda: _named(ranks.everybody - greeted.keys())
        )
        for rank, said in sorted(greeted.items()):
            who = ranks.introduce(rank, said)
            if said["here"]:
                ranks.here.add(rank)
                yield WatchRank(rank, who.pid)
        yield self.tell(f"{ranks.n} rank{'s' if ranks.n != 1 else ''} ready")

    def _registered(self, known: int, timer: Ticket) -> Flow[None]:
        ranks = self.ranks
        yield from self._come(
            lambda: len(ranks.registered) >= known, timer, lambda: _named(ranks.everybody - ranks.registered)
        )
        if known == len(ranks.registered) < ranks.n:
            yield self.tell(f"{known} of {ranks.n} ranks ready")

    def _come(self, condition: Callable[[], bool], timer: Ticket, whom: Callable[[], str]) -> Flow[None]:
        there = yield from self.until(lambda: bool(self._ended) or condition(), timer)
        if self._ended:
            raise WithLog(self._ended)
        if not there:
            late = f"did not come up within {self._patience:g} s (ClusterSpec.start_timeout_s)."
            raise WithLog(f"{whom()} {late}")

    def _is_over(self, timer: Ticket) -> bool:
        return bool(self._ended) or self.is_over(timer)


class StartByEngine(Start):
    """The same where an engine starts the processes: nothing has brought the ranks together before."""

    def __init__(self, request: int, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(request, ranks, patience)
        self._far, self._waits_for = far, f"controller ready, waiting for {ranks.engine} to start the ranks"

    def run(self) -> Flow[None]:
        """Come to know the ranks, and have them meet."""
        yield from super().run()
        ranks = self.ranks
        answers = yield from self.rendezvous(ranks.everybody, far=self._far, check=self._check)
        ranks.apart = False
        for rank, said in answers.items():
            ranks.members[rank] = replace(ranks.members[rank], device=said["device"])

    def _check(self) -> None:
        if self._ended:
            raise WithLog(self._ended)


class Attach(Procedure):
    """Back to the ranks of an earlier kernel: those whose engine is gone are dead, others are asked."""

    def run(self) -> Flow[tuple[int, ...]]:
        """Find out who lives; return who is silent: stopped, or C code keeps Python's lock."""
        ranks = self.ranks
        ranks.dead |= ranks.everybody - ranks.registered
        for rank in sorted(ranks.here - ranks.dead):
            yield WatchRank(rank, ranks.members[rank].pid)
        timer = yield from self.timer(_ANSWER_S)
        yield self.tell("asking the ranks")
        living = ranks.everybody - ranks.dead
        greeted = yield from self.greet(
            living, ("control",), _AGAIN_S, lambda missing: missing <= ranks.dead or self.is_over(timer)
        )
        for rank, said in greeted.items():
            ranks.introduce(rank, said)
        return tuple(sorted(living - greeted.keys() - ranks.dead))


class DetachProcedure(Procedure):
    """A cluster that outlives its kernel from here on."""

    def __init__(self, request: int, ranks: RankTable, wish: messages.Detach, supervisor: int) -> None:
        super().__init__(request, ranks)
        self._wish, self._supervisor = wish, supervisor
        self._why = ""  # it cannot

    def hear(self, event: Event) -> None:
        """Take in what has happened."""
        super().hear(event)
        if isinstance(event, messages.DetachFailed):
            self._why = event.why

    def run(self) -> Flow[None]:
        """Ask the supervisor for it."""
        yield SaveForNextKernel()
        yield Send(self._wish)
        if not (yield from self.within(lambda: bool(self.ranks.detached_name or self._why), _KEEP_S)):
            raise ClusterError(f"the ranks' supervisor (process {self._supervisor}) does not answer: is it stopped?")
        if self._why:
            raise ClusterError(f"the ranks cannot be kept: {self._why}")


def _ended(rank: int, status: int | str) -> str:
    if rank == messages.MPIEXEC:
        return f"the ranks ended while they started (mpiexec's status {status})."
    return f"rank {rank} ended while it started (status {status})."


def _named(ranks: set[int]) -> str:
    return rank_labels.rank_list(ranks)
