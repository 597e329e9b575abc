"""Start of a cluster, attachment to a detached one, and detachment, as procedures of the membership."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hvd_kernel.cluster.ranks.events import Event, SaveForNextKernel, Send, Ticket, WatchRank
from hvd_kernel.cluster.ranks.procedure import Flow, Procedure, WithLog
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.processes.channel import messages

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
        for count in range(1, ranks.n + 1):
            yield from self._await_registrations(count, timer)
        hellos = yield from self.greet(ranks.all, ("shell", "control"), _HELLO_S, lambda _: self._is_over(timer))
        yield from self._await(lambda: ranks.all <= hellos.keys(), timer, lambda: rank_list(ranks.all - hellos.keys()))
        for rank, hello in sorted(hellos.items()):
            process = ranks.introduce(rank, hello)
            if hello["here"]:
                ranks.here.add(rank)
                yield WatchRank(rank, process.pid)
        yield self.progress(f"{plural(ranks.n, 'rank')} ready")

    def _await_registrations(self, count: int, timer: Ticket) -> Flow[None]:
        ranks = self.ranks
        yield from self._await(
            lambda: len(ranks.registered) >= count, timer, lambda: rank_list(ranks.all - ranks.registered)
        )
        if count == len(ranks.registered) < ranks.n:
            yield self.progress(f"{count} of {ranks.n} ranks ready")

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
