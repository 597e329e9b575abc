"""Membership of a cluster as a pure state machine: events in, actions out. No clock, no thread, no process, no file.

``step`` handles one event and returns the resulting actions; executor.py carries them out and feeds their results back
as events. The same code runs in virtual time, with seeded faults: tests/unit/cluster/test_membership.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from hvd_kernel.cluster.ranks.changes import Replace, Resize
from hvd_kernel.cluster.ranks.events import (
    Action,
    AttachRequested,
    Cancelled,
    CommunicatorReady,
    DetachRequested,
    Done,
    EngineRegistered,
    Event,
    Examine,
    Failed,
    Forget,
    RankProcessEnded,
    ReplaceRequested,
    Request,
    ResizeRequested,
    StartRequested,
    Stopped,
    StopRequested,
    WatchRank,
)
from hvd_kernel.cluster.ranks.procedure import Attach, DetachProcedure, Flow, Procedure, Start, StartByEngine, WithLog
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import messages


class ClusterState(Enum):
    """State of the cluster; the value completes the sentence "the ranks are ..."."""

    DOWN = "stopped: `%hvd start` starts new ones"
    STARTING = "being started"
    READY = "ready"
    BROKEN = "not complete"
    REPLACING = "being replaced"
    RESIZING = "being resized"
    DETACHING = "being kept"
    STOPPING = "being stopped"


_FROM = {  # request -> the states in which it is allowed, and the state while it is carried out
    StartRequested: ({ClusterState.DOWN}, ClusterState.STARTING),
    AttachRequested: ({ClusterState.DOWN}, ClusterState.STARTING),
    ReplaceRequested: ({ClusterState.READY, ClusterState.BROKEN}, ClusterState.REPLACING),
    ResizeRequested: ({ClusterState.READY, ClusterState.BROKEN}, ClusterState.RESIZING),
    DetachRequested: ({ClusterState.READY, ClusterState.BROKEN}, ClusterState.DETACHING),
}


class Membership:
    """The members of the cluster and their changes. One thread at a time calls ``step``."""

    def __init__(self, ranks: RankTable, *, patience: float, far: bool) -> None:
        """Create the membership of a stopped cluster.

        Parameters
        ----------
        ranks
            The table of the ranks; only the membership changes it from now on.
        patience
            Seconds that processes may take to become ranks.
        far
            True if a rank may be on another host.
        """
        self.ranks = ranks
        self._patience = patience
        self._far = far
        self._rest = ClusterState.DOWN  # the state without a procedure
        self._meanwhile = ClusterState.DOWN
        self._procedure: Procedure | None = None
        self._flow: Flow[Any] | None = None

    @property
    def state(self) -> ClusterState:
        """The state of the cluster."""
        if self._procedure is not None:
            return self._meanwhile
        whole = not self.ranks.dead and not self.ranks.apart
        return ClusterState.BROKEN if self._rest is ClusterState.READY and not whole else self._rest

    def step(self, event: Event) -> list[Action]:
        """Handle an event; return the resulting actions in order."""
        actions = list(self._handle(event))
        if self._procedure is not None:
            self._procedure.observe(event)
            actions += self._advance(self._procedure)
        return actions

    def _handle(self, event: Event) -> Iterator[Action]:
        match event:
            case StartRequested() | AttachRequested() | ReplaceRequested() | ResizeRequested() | DetachRequested():
                yield from self._begin(event)
            case Cancelled(request):
                if self._procedure is not None and self._procedure.request == request:
                    yield from self._give_up("cancelled", self._procedure.undo)
            case StopRequested():
                self._rest = ClusterState.STOPPING
                yield from self._give_up("the cluster was stopped")
            case Stopped():
                self._rest = ClusterState.DOWN
            case RankProcessEnded(rank, pid):
                yield from self._lose(rank, pid)
            case messages.RankExited(rank=rank) if rank != messages.MPIEXEC:
                yield from self._lose(rank)
            case messages.RankExited() | messages.ChannelClosed():
                yield from self._lose_all(by_launcher=isinstance(event, messages.RankExited))
            case _:
                yield from self._record(event)

    def _record(self, event: Event) -> Iterator[Action]:
        ranks = self.ranks
        match event:
            case EngineRegistered(rank):
                ranks.registered.add(rank)
            case messages.RanksJoining(pids) if self._rest is ClusterState.READY:  # else they exit with the cluster
                yield from (WatchRank(rank, pid) for rank, pid in ranks.join(pids).items() if pid)
            case messages.SparesReady(count):
                ranks.spares = count
            case messages.Detached(name):
                ranks.detached_name = name

    def _begin(self, request: Request) -> Iterator[Action]:
        allowed, meanwhile = _FROM[type(request)]
        if self.state not in allowed:
            yield Failed(request.request, f"the ranks are {self.state.value}")
            return
        self._procedure, self._meanwhile = self._procedure_for(request), meanwhile
        self._flow = self._procedure.run()

    def _procedure_for(self, request: Request) -> Procedure:
        match request:
            case StartRequested(number):
                if self.ranks.engine:
                    return StartByEngine(number, self.ranks, self._patience, far=self._far)
                return Start(number, self.ranks, self._patience)
            case AttachRequested(number):
                return Attach(number, self.ranks)
            case DetachRequested(number, wish, supervisor):
                return DetachProcedure(number, self.ranks, wish, supervisor)
            case ReplaceRequested():
                return Replace(request, self.ranks, self._patience, far=self._far)
            case ResizeRequested():
                return Resize(request, self.ranks, self._patience, far=self._far)

    def _advance(self, procedure: Procedure) -> Iterator[Action]:
        """Run the procedure until it waits or completes."""
        assert self._flow is not None
        try:
            while (action := next(self._flow)) is not None:
                yield action
        except StopIteration as end:
            yield from self._complete(Done(procedure.request, end.value))
        except ClusterError as error:
            yield from self._complete(Failed(procedure.request, str(error), with_log=isinstance(error, WithLog)))

    def _complete(self, answer: Done | Failed) -> Iterator[Action]:
        if self._meanwhile is ClusterState.STARTING and isinstance(answer, Done):
            self._rest = ClusterState.READY
            yield CommunicatorReady(self.ranks.generation)
        self._procedure = self._flow = None
        yield answer

    def _give_up(self, reason: str, undo: Callable[[], Iterator[Action]] = lambda: iter(())) -> Iterator[Action]:
        if self._procedure is not None and self._flow is not None:
            self._flow.close()
            yield from undo()
            yield from self._complete(Failed(self._procedure.request, reason))

    def _lose_all(self, *, by_launcher: bool) -> Iterator[Action]:
        """Record that mpiexec, or the supervisor, has exited with every process that it started."""
        ranks = self.ranks
        for rank in sorted(ranks.by_launcher & ranks.members.keys()) if by_launcher else range(ranks.n):
            yield from self._lose(rank, ranks.members[rank].pid if by_launcher else 0)

    def _lose(self, rank: int, pid: int = 0) -> Iterator[Action]:
        """Record the exit of a process, whose rank may have been renumbered since it is watched."""
        ranks = self.ranks
        process = ranks.process(rank)
        if pid and (process is None or pid != process.pid):
            rank = ranks.rank_of(pid)
            process = ranks.process(rank)
        if rank not in ranks.all:
            return
        if rank in ranks.arrivals:
            ranks.fallen.add(rank)
            ranks.registered.discard(rank)
            yield Forget(frozenset({rank}))
        elif rank not in ranks.dead:
            ranks.dead.add(rank)
            ranks.registered.discard(rank)
            is_planned, by_launcher = rank in ranks.leaving, rank in ranks.by_launcher
            yield Forget(frozenset({rank})) if is_planned else Examine(rank, process, by_launcher)
