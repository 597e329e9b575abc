"""Virtual cluster in virtual time, on which the actions of a membership work: processes, a supervisor, a controller, a user.

Everything that takes time takes a random one; everything that can fail fails at random, by one seed. What must hold
always is asserted with every action: see ``check``.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hvd_kernel.cluster.ranks import events as e
from hvd_kernel.cluster.ranks.membership import ClusterState, Membership
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.event_loop import SetTimer, TimerFired

HOST = "here"
PATIENCE_S = 120.0
IMPORTS_S = 3.0
TOGETHER_S = 30.0
GONE = -1


@dataclass(eq=False)
class Process:
    """A process that is, or becomes, a rank."""

    pid: int
    rank: int
    alive: bool = True
    watched: bool = False
    watched_as: int = -1  # its rank when it was first watched
    engine: bool = False  # the controller knows it
    is_told: bool = False  # the membership knows of its exit
    admitted: bool = False  # it counts as a rank
    generation: int = -1  # of the communicator that it is in
    stopped_until: float = 0.0


@dataclass(eq=False)
class Question:
    """Put to a process, and not answered yet."""

    ticket: e.Ticket
    handler: str
    content: Mapping[str, Any]
    until: float  # it is given up


class VirtualCluster:
    """Carries out the actions of a membership of n ranks; ``run`` until no event is left."""

    def __init__(self, n: int, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.membership = Membership(RankTable(n, HOST), patience=PATIENCE_S, far=False)
        self.processes: list[Process] = []
        self.answers: dict[int, list[e.Done | e.Failed]] = {}
        self.generation = 0
        self.lossy = True  # greetings are lost, cells do not end
        self._sizes = {0: n}  # of each generation
        self._supervisor = True
        self._is_stopped = False
        self._first: list[Process] = []  # processes that mpiexec started
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._asked: list[tuple[Process, Question]] = []
        self._greeted: set[tuple[e.Ticket, int]] = set()
        self._done_together: set[tuple[e.Ticket, int]] = set()

    @property
    def n(self) -> int:
        """How many ranks there are, as far as the membership knows."""
        return self.membership.ranks.n

    # The user, and fate.

    def request(self, make: Callable[..., e.Request], *what: Any, **more: Any) -> int:
        """Make a request; return its number."""
        number = next(self._numbers)
        self.answers[number] = []
        self.deliver(make(number, *what, **more))
        return number

    def spawn(self, rank: int, took: float) -> Process:
        """Start a process, which registers after a while."""
        process = Process(next(self._numbers) + 1000, rank)
        self.processes.append(process)
        self.later(took, lambda: self._register(process))
        return process

    def kill(self, process: Process) -> None:
        """End a process."""
        if process.alive:
            process.alive = False
            if process.watched:
                self._report_death(process)
            if process in self._first and not any(each.alive for each in self._first):
                self.soon(lambda: self.deliver(m.RankExited(m.MPIEXEC, 0)))

    def stop(self) -> None:
        """Have the cluster end."""
        self._is_stopped = True
        self.deliver(e.StopRequested())

    def end_supervisor(self) -> None:
        """End the supervisor, and all processes with it."""
        self._supervisor = False
        for each in self.processes:
            self.kill(each)
        self.soon(lambda: self.deliver(m.ChannelClosed()))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._agenda, (self.now + seconds, next(self._numbers), what))

    def soon(self, what: Callable[[], None]) -> None:
        """Have something happen in a moment."""
        self.later(self.random.uniform(0.0, 0.02), what)

    def run(self, until: float = float("inf")) -> None:
        """Let time pass."""
        while self._agenda and self._agenda[0][0] <= until:
            self.step()

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, what = heapq.heappop(self._agenda)
        what()

    def living(self, rank: int) -> list[Process]:
        """Return the processes that are this rank."""
        return [each for each in self.processes if each.rank == rank and each.alive]

    def deliver(self, event: e.Event) -> None:
        """Let the membership handle an event, and execute its actions."""
        for action in self.membership.step(event):
            self.check(action)
            getattr(self, "on_" + type(action).__name__.lower())(action)
        for rank in range(self.n):
            assert len(self.living(rank)) <= 1, f"two processes are rank {rank}"
        if self.membership.state is ClusterState.READY:
            members = self.membership.ranks.members.values()
            assert not self.membership.ranks.dead
            [met] = {self._process(who.pid).generation for who in members}
            assert self._sizes[met] == self.n, "ranks that have not met in this number are ready"

    def check(self, action: e.Action) -> None:
        """Fail if the action is for a process known to be dead, or replaces a living rank."""
        ranks = self.membership.ranks
        is_report = isinstance(action, e.Answer | e.Examine | e.Forget)
        assert is_report or not self._is_stopped, f"{action}, and the cluster has ended"
        match action:
            case e.Query(ranks=asked) | e.Greet(ranks=asked):
                for who in filter(None, map(ranks.process, asked)):
                    assert not self._process(who.pid).is_told, f"{action} asks rank {who.rank}, which is dead"
            case e.FormCommunicator(generation=generation, members=members):
                assert generation > self.generation, "a generation that has been"
                assert sorted(members) == list(range(self.n)), "some are left out"
                assert not [who for who in members.values() if self._process(who.pid).is_told], "the dead are members"
            case e.Kill(pids):
                assert not [pid for pid in pids if self._process(pid).is_told], "the dead are killed"
            case e.Renumber(n=n, numbers=numbers):
                assert sorted(numbers.values()) == sorted(set(range(n)) - ranks.dead), "places that nobody has"
            case e.Send(m.Resized()):
                staying = {who.pid for rank, who in ranks.members.items() if rank not in ranks.dead}
                left = [each for each in self.processes if each.admitted and each.alive and each.pid not in staying]
                assert not left, "a rank that lives is left out"
            case e.Send(m.ReplaceRanks(replaced)):
                for rank in replaced:
                    assert rank in ranks.dead, f"rank {rank} is replaced, and lives"
            case e.Done(request) | e.Failed(request):
                assert not self.answers[request], f"request {request} is answered twice"

    # Actions.

    def on_reportprogress(self, action: e.ReportProgress) -> None:
        assert not self.answers[action.request], "somebody is told who has his answer"

    def on_done(self, action: e.Done) -> None:
        self.answers[action.request].append(action)

    def on_failed(self, action: e.Failed) -> None:
        self.answers[action.request].append(action)

    def on_settimer(self, timer: SetTimer[e.Ticket]) -> None:
        self.later(timer.seconds, lambda: self.deliver(TimerFired(timer.ticket)))

    def on_watchrank(self, action: e.WatchRank) -> None:
        process = self._process(action.pid)
        process.watched, process.watched_as = True, action.rank
        if not process.alive:
            self._report_death(process)

    def on_examine(self, action: e.Examine) -> None:
        self.later(0.05, lambda: self._bury([each for each in self.processes if each.rank == action.rank]))

    def on_forget(self, action: e.Forget) -> None:
        before = [each for each in self.processes if each.rank in action.ranks]
        for each in before:
            each.engine = False
        self._bury(before, whoever=True)

    def on_renumber(self, action: e.Renumber) -> None:
        for each in self.processes:
            known = self.membership.ranks.members.get(action.numbers.get(each.rank, -1))
            stays = known is not None and known.pid == each.pid
            each.rank = action.numbers[each.rank] if stays else GONE
            each.engine &= stays

    def on_greet(self, action: e.Greet) -> None:
        for rank in action.ranks:
            if not (self.lossy and self.random.random() < 0.2):
                self.soon(partial(self._introduce, action.ticket, rank))

    def on_query(self, action: e.Query) -> None:
        for rank in sorted(action.ranks):
            for process in self._engines(rank):
                question = Question(action.ticket, action.handler, action.content, self.now + TOGETHER_S)
                self._asked.append((process, question))
                self.soon(partial(self._reply, process, question))

    def on_formcommunicator(self, action: e.FormCommunicator) -> None:
        self.generation = action.generation
        self._sizes[action.generation] = len(action.members)
        content = {"members": {rank: who.pid for rank, who in action.members.items()}, "as": action.generation}
        self.on_query(e.Query(action.ticket, "rendezvous", frozenset(action.members), content))

    def on_communicatorready(self, action: e.CommunicatorReady) -> None:
        for rank in range(self.n):
            who = self.membership.ranks.members[rank]
            self._process(who.pid).admitted = True
            generation = self._process(who.pid).generation
            assert generation == action.generation, f"rank {rank} is in generation {generation}"

    def on_kill(self, action: e.Kill) -> None:
        for pid in action.pids:
            self.kill(self._process(pid))

    def on_awaitcell(self, action: e.AwaitCell) -> None:
        if not (self.lossy and self.random.random() < 0.05):
            self.later(self.random.uniform(0, 2), lambda: self.deliver(e.CellEnded(action.ticket)))

    def on_savefornextkernel(self, _: e.SaveForNextKernel) -> None:
        """Do nothing: no kernel follows this one."""

    def on_send(self, action: e.Send) -> None:
        if not self._supervisor:
            return
        match action.message:
            case m.ReplaceRanks(ranks):
                self.soon(lambda: self._replace(ranks))
            case m.Resized(numbers=numbers):
                for each in self.processes:
                    if each.rank not in numbers or each.generation == -1:
                        self.kill(each)
            case m.Detach(name=name):
                answer = self.random.choice([m.Detached(name), m.DetachFailed("no room"), None])
                if answer is not None:
                    self.soon(lambda: self.deliver(answer))

    # How it comes about.

    def _process(self, pid: int) -> Process:
        return next(each for each in self.processes if each.pid == pid)

    def _engines(self, rank: int) -> list[Process]:
        return [each for each in self.processes if each.rank == rank and each.engine]

    def _register(self, process: Process) -> None:
        if process.alive and process.rank != GONE:
            for each in self._engines(process.rank):
                each.engine = False
            process.engine = True
            self.deliver(e.EngineRegistered(process.rank))

    def _report_death(self, process: Process) -> None:
        late = 0.02 if self.random.random() < 0.8 else 1.0
        self.later(self.random.uniform(0.0, late), lambda: self._tell_death(process))

    def _tell_death(self, process: Process) -> None:
        process.is_told = True
        self.deliver(e.RankProcessEnded(process.watched_as, process.pid))

    def _introduce(self, ticket: e.Ticket, rank: int) -> None:
        for process in self._engines(rank):
            if process.alive and process.stopped_until <= self.now and (ticket, rank) not in self._greeted:
                self._greeted.add((ticket, rank))
                who = {"pid": process.pid, "host": HOST, "device": "cpu", "here": True}
                self.deliver(e.RankAnswered(ticket, rank, who))

    def _replace(self, ranks: list[int]) -> None:
        pids = {}
        for rank in ranks:
            for before in self.living(rank):
                if before.generation == -1:
                    self.kill(before)  # it was to be that rank and has not come so far
            took = IMPORTS_S if self.random.random() < 0.5 else 0.2
            pids[rank] = self.spawn(rank, self.random.uniform(0.01, took)).pid
        self.soon(lambda: self.deliver(m.RanksJoining(pids)))

    def start(self) -> None:
        """Start: processes exist."""
        self._first = [self.spawn(rank, self.random.uniform(0.5, IMPORTS_S)) for rank in range(self.n)]
        for each in self._first:
            each.generation = 0
        self.soon(lambda: self.deliver(m.Connected({})))

    def _reply(self, process: Process, question: Question) -> None:
        if not process.alive or (process, question) not in self._asked:
            return
        if process.stopped_until > self.now:
            self.later(process.stopped_until - self.now, lambda: self._reply(process, question))
            return
        if question.handler in {"rendezvous", "restore"} and not self._all_are_there(question):
            ended = [each for each in self.processes if each.pid in self._peers(process, question) and not each.alive]
            if ended or self.now > question.until:
                self._answer(process, question, {"error": "a peer has ended"})
            else:
                self.later(0.05, lambda: self._reply(process, question))
            return
        if question.handler == "rendezvous":
            process.generation = question.content["as"]
        if question.handler == "leave":
            self.later(
                self.random.uniform(0.0, 0.2 if self.random.random() < 0.9 else 20.0), lambda: self.kill(process)
            )
        self._answer(
            process, question, {"names": ["x"], "sets": [], "lost": {}, "device": "cpu", "host": "", "port": 1}
        )

    def _peers(self, process: Process, question: Question) -> set[int]:
        if question.handler == "rendezvous":
            return set(question.content["members"].values())
        return {each.pid for each in self.processes if each.generation == process.generation}

    def _all_are_there(self, question: Question) -> bool:
        """Return whether all ranks have received the same collective request."""
        asked = {process.rank for process, each in self._asked if each.ticket == question.ticket and process.alive}
        done = {rank for ticket, rank in self._done_together if ticket == question.ticket}
        return asked | done == set(range(self.n))

    def _answer(self, process: Process, question: Question, content: Mapping[str, Any]) -> None:
        self._asked.remove((process, question))
        if "error" not in content:
            self._done_together.add((question.ticket, process.rank))
        self.deliver(e.RankAnswered(question.ticket, process.rank, content))

    def _bury(self, processes: list[Process], *, whoever: bool = False) -> None:
        for process, question in list(self._asked):
            if process in processes and (whoever or not process.alive):
                self._answer(process, question, {"error": "it has died"})
