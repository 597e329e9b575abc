"""Executor of a membership: carries out its actions, and brings it what comes of them as events.

Threads: once there is a connection to the ranks, the membership steps on its I/O thread alone, so that no interrupt key
can come in between; before, on the thread that waits for the start. Whoever waits for an answer may be interrupted.
"""

from __future__ import annotations

import secrets
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster import failure, rank_files, registration
from hvd_kernel.cluster.ranks import events as e
from hvd_kernel.cluster.ranks.membership import Membership
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.remembered import remembered
from hvd_kernel.cluster.requests.gather import Handshake, Report
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.diagnosis.post_mortem import Cause
from hvd_kernel.diagnosis.recorder import Recorder
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.event_loop import SetTimer, TimerFired
from hvd_kernel.processes.lifetime import kill
from hvd_kernel.processes.mpi.network import is_far

if TYPE_CHECKING:
    from hvd_kernel.cluster.requests.cell_run import CellRun
    from hvd_kernel.cluster.requests.clients import Clients
    from hvd_kernel.cluster.requests.stream import Stream

_CANCEL_S = 5.0  # for the I/O thread to undo a cancelled request
_LAST_WORDS_S = 0.05  # a dead rank's last output may still be on its way through the controller
Say = Callable[[str], None]


class Executor:
    """Holds what actions need: the supervisor, the connection to the ranks, the recorder of their deaths."""

    def __init__(self, spec: ClusterSpec, ranks: RankTable, launched: Supervised) -> None:
        self.spec = spec
        self.ranks = ranks
        self.launched = launched
        self.stream: Stream | None = None
        self.clients: Clients | None = None  # ipyparallel's ordinary ones
        self.recorder = Recorder(launched.folder)
        self.notices: list[str] = []  # what the user should know, and has not been told
        self.latest: CellRun | None = None  # the cell that runs, or ran last
        self.on_ready: Callable[[], None] = lambda: None
        self.on_broken: Callable[[], None] = lambda: None
        self._membership = Membership(ranks, patience=spec.start_timeout_s, far=is_far(spec) or bool(spec.on))
        self._secret = ""  # shows the hub that it is told of deaths by this kernel
        self._inboxes: dict[int, SimpleQueue[e.Answer]] = {}  # of those who wait
        self._numbers = count(1)
        self._timers: list[tuple[float, e.Ticket]] = []  # set before there is a connection
        self._hands: dict[e.Ticket, Handshake] = {}  # the latest
        self._carry_out: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((e.Tell, e.Done, e.Failed), self._answer),
            SetTimer: self._set_timer,
            e.Send: lambda action: launched.send(action.message),
            e.WatchRank: self._watch,
            e.Examine: self._examine,
            e.Forget: self._forget,
            e.Renumber: self._renumber,
            e.Greet: self._greet,
            e.Ask: self._ask,
            e.FormCommunicator: self._rendezvous,
            e.CommunicatorReady: self._note_ready,
            e.Kill: self._kill,
            e.AwaitCell: self._await_cell,
            e.SaveForNextKernel: lambda _: self.remember(),
        }

    @property
    def wire(self) -> Stream:
        """The connection to the ranks.

        Raises
        ------
        ClusterError
            There is none: the cluster is stopped.
        """
        if self.stream is None:
            raise failure.no_cluster()
        return self.stream

    def call(self, make: Callable[..., e.Request], *what: Any, say: Say = lambda _text: None, **more: Any) -> Any:
        """Make a request and return its answer. Interruptible.

        Raises
        ------
        ClusterError
            As the membership says.
        """
        number = next(self._numbers)
        inbox = self._inboxes[number] = SimpleQueue()
        try:
            self.deliver(make(number, *what, **more))
            answer = self._await_answer(inbox, say)
        except BaseException:
            self.deliver(e.Cancelled(number))
            self._await_cancellation(inbox)
            raise
        finally:
            del self._inboxes[number]
        if isinstance(answer, e.Failed):
            if answer.with_log:
                raise failure.start_failed(self.launched.explain(answer.why), self.launched.log)
            raise ClusterError(answer.why)
        return answer.value

    def deliver(self, event: e.Event) -> None:
        """Have the membership take an event. Any thread."""
        if self.stream is not None:
            self.stream.soon(self._step, event)
        else:
            self._step(event)

    def connect(self, connection: Mapping[str, Any]) -> None:
        """Make the connection to the ranks."""
        from hvd_kernel.cluster.requests.clients import Clients  # noqa: PLC0415 - ipyparallel, while processes start
        from hvd_kernel.cluster.requests.stream import Stream  # noqa: PLC0415 - as above

        known = dict(connection)
        self._secret = known.pop(registration.SECRET)
        self.clients = Clients(known)
        self.stream = Stream(
            known,
            lambda rank, pid: self.deliver(e.RankProcessEnded(rank, pid)),
            lambda rank: self.deliver(e.EngineRegistered(rank)),
            self.on_broken,
        )
        for rank in list(self.stream.uuids):
            self.deliver(e.EngineRegistered(rank))
        for at, ticket in self._timers:
            self.stream.soon(self.stream.later, max(0.0, at - time.monotonic()), self._step, TimerFired(ticket))
        self.stream.listen(self.launched.descriptor, self._receive)

    def take(self, message: messages.Message) -> None:
        """Take what the supervisor says."""
        match message:
            case messages.Connected(client):
                self.connect(client)
            case messages.Inviting():
                self.launched.invite(message)
            case messages.Notice(text):
                self.notices.append(text)
            case messages.RankKilled(rank, why):
                self.recorder.killed(rank, why)
            case messages.RankExited(rank, status) if rank != messages.MPIEXEC:
                self.recorder.exited(rank, status)
            case messages.RankExited(status=status):
                self.recorder.launcher_exited(status)
            case messages.ChannelClosed():
                self.recorder.launcher_exited(None)
                if self.stream is not None:
                    self.stream.unlisten(self.launched.descriptor)
        self.deliver(message)

    def end(self, how: Callable[[], None]) -> None:
        """End the connection, and what stands on it, before the ranks end or are left. Idempotent."""
        if self.stream is not None:
            self.stream.stop(self.launched.descriptor)
            self.stream = None
        self._step(e.StopRequested())
        self._fail_all(str(failure.no_cluster()))  # requests that have not come through any more
        if self.clients is not None:
            clients, self.clients = self.clients, None
            clients.end()
        self.recorder.close()
        how()
        self._step(e.Stopped())

    def remember(self) -> None:
        """Tell the supervisor what the next kernel has to know."""
        self.launched.send(messages.Remember(remembered(self.spec, self.ranks, self.recorder.causes)))

    # The thread that waits.

    def _await_answer(self, inbox: SimpleQueue[e.Answer], say: Say) -> e.Done | e.Failed:
        while True:
            while self.stream is None and inbox.empty():
                self._await_connection()
            told = inbox.get()
            if not isinstance(told, e.Tell):
                return told
            say(told.text)

    def _await_cancellation(self, inbox: SimpleQueue[e.Answer]) -> None:
        """Wait until a cancelled request is undone, which takes no answer of a rank."""
        deadline = time.monotonic() + _CANCEL_S
        with suppress(Empty):
            while not isinstance(inbox.get(timeout=max(0.0, deadline - time.monotonic())), e.Done | e.Failed):
                pass

    def _await_connection(self) -> None:
        at, ticket = self._timers[0]
        if select.select([self.launched.descriptor], [], [], max(0.0, at - time.monotonic()))[0]:
            self._receive()
        else:
            self.deliver(TimerFired(ticket))

    def _receive(self) -> None:
        for message in self.launched.receive():
            self.take(message)

    # The thread on which the membership steps.

    def _step(self, event: e.Event) -> None:
        try:
            for action in self._membership.step(event):
                self._carry_out[type(action)](action)
        except Exception as error:  # of ours: whoever waits must hear of it
            self._fail_all(f"{type(error).__name__}: {error}")
            raise

    def _answer(self, answer: e.Answer) -> None:
        if inbox := self._inboxes.get(answer.request):
            inbox.put(answer)

    def _fail_all(self, why: str) -> None:
        for number in list(self._inboxes):
            self._answer(e.Failed(number, why))

    def _set_timer(self, timer: SetTimer[e.Ticket]) -> None:
        if self.stream is not None:
            self.stream.later(timer.seconds, self._step, TimerFired(timer.ticket))
        else:
            self._timers.append((time.monotonic() + timer.seconds, timer.ticket))

    def _watch(self, action: e.WatchRank) -> None:
        """Hear of the end of a rank of this host, and why; it may have come already. Have it limited."""
        rank, pid = action.rank, action.pid
        if self.spec.limits:
            self.launched.send(messages.LimitRank(pid, rank, self.spec.limits[rank]))
        self.recorder.watch(rank, pid)
        try:
            self.wire.watch(rank, pid)
        except ProcessLookupError:
            self.deliver(e.RankProcessEnded(rank, pid))

    def _examine(self, action: e.Examine) -> None:
        stream, rank, who = self.wire, action.rank, action.who
        sample = self.latest.metrics.get(rank) if self.latest is not None else None
        bury = partial(self._bury, action, stream.uuids.get(rank, ""), time.monotonic())
        examine = partial(self.recorder.examine, by_mpi=action.by_launcher)
        pid, resident = who.pid if who else 0, sample.rss if sample else 0
        stream.later(_LAST_WORDS_S, examine, rank, pid, resident, stream.later, bury)

    def _bury(self, dead: e.Examine, uuid: str, at: float, cause: Cause) -> None:
        rank, who = dead.rank, dead.who
        death = failure.rank_died(rank, who.pid if who else 0, who.host if who else "", cause, at)
        if self.stream is not None and self.stream.uuids.get(rank, "") == uuid:  # else it has been replaced
            self.stream.forget(rank, death)
            self.stream.tell_hub(registration.LOST, {"id": rank, "uuid": uuid, registration.SECRET: self._secret})
        if self.ranks.detached_name:
            self.remember()

    def _forget(self, action: e.Forget) -> None:
        for rank in action.ranks:
            self.wire.drop(rank, failure.replaced(rank))

    def _renumber(self, action: e.Renumber) -> None:
        """Have everything here know the ranks by their new numbers; a cell that has ended is of those before.

        In one that runs no rank has another number.
        """
        numbers = action.numbers
        self.spec = replace(self.spec, n=action.n)
        if self.latest is not None and self.latest.finished:
            self.latest = None
        self.recorder.renumber(numbers, {who.pid for who in self.ranks.members.values()})
        rank_files.renumber(self.launched.folder, numbers)
        self.wire.renumber(numbers)
        ranks = {uuid: rank for rank, uuid in self.wire.uuids.items()}
        self.wire.tell_hub(registration.NUMBERS, {"ranks": ranks, registration.SECRET: self._secret})

    def _greet(self, action: e.Greet) -> None:
        if action.ticket not in self._hands:
            answer = partial(self._introduce, action.ticket)
            self._hands = {action.ticket: Handshake(action.ranks, action.channels, answer)}
        self._hands[action.ticket].greet(self.wire.request)

    def _introduce(self, ticket: e.Ticket, rank: int, said: Mapping[str, Any]) -> None:
        here = said.get("pid") in self.launched.local_ranks()
        self.deliver(e.RankAnswered(ticket, rank, {**said, "here": here}))

    def _ask(self, action: e.Ask) -> None:
        content = {"handler": action.handler, **action.content}
        report = Report(lambda rank, said: self.deliver(e.RankAnswered(action.ticket, rank, said)))
        busy = self.latest.busy if self.latest is not None else set()  # they wait within the cell, and hear on control
        for ranks, urgent in ((action.ranks & busy, True), (action.ranks - busy, action.urgent)):
            if ranks:
                self.wire.request(sorted(ranks), "hvd_request", content, report, urgent=urgent)

    def _rendezvous(self, action: e.FormCommunicator) -> None:
        peers = {rank: (who.pid, who.host, who.identity) for rank, who in action.members.items()}
        rendezvous = {
            "size": len(peers),
            "secret": secrets.token_hex(32),
            "ranks": peers,
            "fresh": sorted(action.fresh),
        }
        self._ask(e.Ask(action.ticket, "rendezvous", frozenset(peers), {**rendezvous, **action.place}))

    def _kill(self, action: e.Kill) -> None:
        for pid in action.pids:
            kill(pid, signal.SIGKILL)

    def _note_ready(self, _: e.CommunicatorReady) -> None:
        if self.latest is not None:
            self.latest.aborted = False
        self.on_ready()

    def _await_cell(self, action: e.AwaitCell) -> None:
        ended = e.CellEnded(action.ticket)
        if self.latest is None:
            self.deliver(ended)
        else:
            self.latest.over.add_done_callback(lambda _: self.deliver(ended))
