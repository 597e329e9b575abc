"""Executor of a membership: carries out its actions, and feeds it their results as events.

Threads: once the ranks are connected, the membership steps only on the connection's I/O thread, where KeyboardInterrupt
cannot arrive in the middle of a step; before, on the thread that waits for the start. A thread that waits for an answer
may be interrupted.
"""

from __future__ import annotations

import re
import secrets
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster import failure, registration
from hvd_kernel.cluster.launcher import Supervised
from hvd_kernel.cluster.ranks import events as e
from hvd_kernel.cluster.ranks.membership import Membership
from hvd_kernel.cluster.ranks.rank_table import RankTable, remembered
from hvd_kernel.cluster.requests.gather import Handshake, Report
from hvd_kernel.diagnosis.post_mortem import Cause
from hvd_kernel.diagnosis.recorder import Recorder
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.event_loop import SetTimer, TimerFired
from hvd_kernel.processes.lifetime import kill
from hvd_kernel.processes.open_mpi import is_far
from hvd_kernel.protocol import rank_log
from hvd_kernel.protocol.messages import STACK_PIPE

if TYPE_CHECKING:
    from hvd_kernel.cluster.requests.cell_execution import CellExecution
    from hvd_kernel.cluster.requests.stream import Clients, Stream

_CANCEL_S = 5.0  # for the I/O thread to undo a cancelled request
_LAST_OUTPUT_S = 0.05  # a dead rank's last output may still be in transit through the controller
Say = Callable[[str], None]


class Executor:
    """Holds the resources that actions need: the supervisor, the connection to the ranks, the recorder of deaths."""

    def __init__(self, spec: ClusterSpec, ranks: RankTable, launched: Supervised) -> None:
        self.spec = spec
        self.ranks = ranks
        self.launched = launched
        self.stream: Stream | None = None
        self.clients: Clients | None = None  # ipyparallel's ordinary ones
        self.recorder = Recorder(launched.folder)
        self.notices: list[str] = []  # messages for the user that have not been shown
        self.latest: CellExecution | None = None  # the current or most recent cell
        self.on_ready: Callable[[], None] = lambda: None
        self.on_broken: Callable[[], None] = lambda: None
        self._membership = Membership(ranks, patience=spec.start_timeout_s, far=is_far(spec) or bool(spec.on))
        self._secret = ""  # proves to the hub that a report of a death comes from this kernel
        self._inboxes: dict[int, SimpleQueue[e.Answer]] = {}  # request -> answers for its waiter
        self._numbers = count(1)
        self._timers: list[tuple[float, e.Ticket]] = []  # set before the ranks are connected
        self._handshakes: dict[e.Ticket, Handshake] = {}  # only the latest
        self._carry_out: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((e.ReportProgress, e.Done, e.Failed), self._answer),
            SetTimer: self._set_timer,
            e.Send: lambda action: launched.send(action.message),
            e.WatchRank: self._watch,
            e.Examine: self._examine,
            e.Forget: self._forget,
            e.Renumber: self._renumber,
            e.Greet: self._greet,
            e.Query: self._query,
            e.FormCommunicator: self._rendezvous,
            e.CommunicatorReady: self._finish_rendezvous,
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
            If the cluster is stopped.
        """
        if self.stream is None:
            raise failure.no_cluster()
        return self.stream

    def call(self, make: Callable[..., e.Request], *args: Any, say: Say = lambda _text: None, **kwargs: Any) -> Any:
        """Make a request and return its answer. Interruptible.

        Raises
        ------
        ClusterError
            If the membership answers with an error.
        """
        number = next(self._numbers)
        inbox = self._inboxes[number] = SimpleQueue()
        try:
            self.deliver(make(number, *args, **kwargs))
            answer = self._await_answer(inbox, say)
        except BaseException:
            self.deliver(e.Cancelled(number))
            self._await_cancellation(inbox)
            raise
        finally:
            del self._inboxes[number]
        if isinstance(answer, e.Failed):
            if answer.with_log:
                raise failure.start_failed(self.launched.explain(answer.reason), self.launched.log)
            raise ClusterError(answer.reason)
        return answer.value

    def deliver(self, event: e.Event) -> None:
        """Feed an event to the membership. Any thread."""
        if self.stream is not None:
            self.stream.soon(self._step, event)
        else:
            self._step(event)

    def connect(self, connection: Mapping[str, Any]) -> None:
        """Connect to the ranks through the controller."""
        from hvd_kernel.cluster.requests.stream import Clients, Stream  # noqa: PLC0415 - ipyparallel, while processes start

        client = dict(connection)
        self._secret = client.pop(registration.SECRET)
        self.clients = Clients(client)
        self.stream = Stream(
            client,
            lambda rank, pid: self.deliver(e.RankProcessEnded(rank, pid)),
            lambda rank: self.deliver(e.EngineRegistered(rank)),
            self.on_broken,
        )
        for rank in list(self.stream.uuids):
            self.deliver(e.EngineRegistered(rank))
        for at, ticket in self._timers:
            self.stream.soon(self.stream.later, max(0.0, at - time.monotonic()), self._step, TimerFired(ticket))
        self.stream.listen(self.launched.descriptor, self._receive)

    def handle(self, message: messages.Message) -> None:
        """Handle a message from the supervisor."""
        match message:
            case messages.Connected(client):
                self.connect(client)
            case messages.Inviting():
                self.launched.invite(message)
            case messages.Notice(text):
                self.notices.append(text)
            case messages.RankKilled(rank, reason):
                self.recorder.killed(rank, reason)
            case messages.RankExited(rank, status) if rank != messages.MPIEXEC:
                self.recorder.exited(rank, status)
            case messages.RankExited(status=status):
                self.recorder.launcher_exited(status)
            case messages.ChannelClosed():
                self.recorder.launcher_exited(None)
                if self.stream is not None:
                    self.stream.unlisten(self.launched.descriptor)
        self.deliver(message)

    def end(self, end_ranks: Callable[[], None]) -> None:
        """Close the connection and everything that depends on it, then stop or leave the ranks. Idempotent."""
        if self.stream is not None:
            self.stream.stop(self.launched.descriptor)
            self.stream = None
        self._step(e.StopRequested())
        self._fail_all(str(failure.no_cluster()))  # requests that did not reach the membership
        if self.clients is not None:
            clients, self.clients = self.clients, None
            clients.end()
        self.recorder.close()
        end_ranks()
        self._step(e.Stopped())

    def remember(self) -> None:
        """Store the state that the next kernel needs with the supervisor."""
        self.launched.send(messages.Remember(remembered(self.spec, self.ranks, self.recorder.causes)))

    # On the thread that waits.

    def _await_answer(self, inbox: SimpleQueue[e.Answer], say: Say) -> e.Done | e.Failed:
        while True:
            while self.stream is None and inbox.empty():
                self._await_connection()
            answer = inbox.get()
            if not isinstance(answer, e.ReportProgress):
                return answer
            say(answer.text)

    def _await_cancellation(self, inbox: SimpleQueue[e.Answer]) -> None:
        """Wait until a cancelled request is undone, which needs no answer from a rank."""
        deadline = time.monotonic() + _CANCEL_S
        with suppress(Empty):
            while not isinstance(inbox.get(timeout=max(0.0, deadline - time.monotonic())), e.Done | e.Failed):
                pass

    def _await_connection(self) -> None:
        next_timer = min(self._timers)
        at, ticket = next_timer
        if select.select([self.launched.descriptor], [], [], max(0.0, at - time.monotonic()))[0]:
            self._receive()
        else:
            self._timers.remove(next_timer)
            self.deliver(TimerFired(ticket))

    def _receive(self) -> None:
        for message in self.launched.receive():
            self.handle(message)

    # On the thread on which the membership steps.

    def _step(self, event: e.Event) -> None:
        try:
            for action in self._membership.step(event):
                self._carry_out[type(action)](action)
        except Exception as error:  # a bug of ours: without an answer, callers would wait forever
            self._fail_all(f"{type(error).__name__}: {error}")
            raise

    def _answer(self, answer: e.Answer) -> None:
        if inbox := self._inboxes.get(answer.request):
            inbox.put(answer)

    def _fail_all(self, reason: str) -> None:
        for number in list(self._inboxes):
            self._answer(e.Failed(number, reason))

    def _set_timer(self, timer: SetTimer[e.Ticket]) -> None:
        if self.stream is not None:
            self.stream.later(timer.seconds, self._step, TimerFired(timer.ticket))
        else:
            self._timers.append((time.monotonic() + timer.seconds, timer.ticket))

    def _watch(self, action: e.WatchRank) -> None:
        """Watch for the exit of a rank of this host, which may have exited already, and apply its limits."""
        rank, pid = action.rank, action.pid
        if self.spec.limits:
            self.launched.send(messages.LimitRank(pid, rank, self.spec.limits[rank]))
        self.recorder.watch(rank, pid)
        try:
            self.wire.watch(rank, pid)
        except ProcessLookupError:
            self.deliver(e.RankProcessEnded(rank, pid))

    def _examine(self, action: e.Examine) -> None:
        stream, rank, process = self.wire, action.rank, action.process
        sample = self.latest.metrics.get(rank) if self.latest is not None else None
        announce = partial(self._announce_death, action, stream.uuids.get(rank, ""), time.monotonic())
        examine = partial(self.recorder.examine, by_mpi=action.by_launcher)
        pid, resident = process.pid if process else 0, sample.rss if sample else 0
        stream.later(_LAST_OUTPUT_S, examine, rank, pid, resident, stream.later, announce)

    def _announce_death(self, dead: e.Examine, uuid: str, at: float, cause: Cause) -> None:
        rank, process = dead.rank, dead.process
        death = failure.rank_died(rank, process.pid if process else 0, process.host if process else "", cause, at)
        if self.stream is not None and self.stream.uuids.get(rank, "") == uuid:  # else it has been replaced
            self.stream.forget(rank, death)
            self.stream.notify_hub(registration.LOST, {"id": rank, "uuid": uuid, registration.SECRET: self._secret})
        if self.ranks.detached_name:
            self.remember()

    def _forget(self, action: e.Forget) -> None:
        for rank in action.ranks:
            self.wire.drop(rank, failure.replaced(rank))

    def _renumber(self, action: e.Renumber) -> None:
        """Renumber every table keyed by rank, and forget a finished cell, whose numbers are stale.

        In a running cell ranks keep their numbers.
        """
        numbers = action.numbers
        self.spec = replace(self.spec, n=action.n)
        if self.latest is not None and self.latest.finished:
            self.latest = None
        self.recorder.renumber(numbers, {member.pid for member in self.ranks.members.values()})
        rename_files(self.launched.folder, numbers)
        self.wire.renumber(numbers)
        ranks = {uuid: rank for rank, uuid in self.wire.uuids.items()}
        self.wire.notify_hub(registration.NUMBERS, {"ranks": ranks, registration.SECRET: self._secret})

    def _greet(self, action: e.Greet) -> None:
        if action.ticket not in self._handshakes:
            answer = partial(self._introduce, action.ticket)
            self._handshakes = {action.ticket: Handshake(action.ranks, action.channels, answer)}
        self._handshakes[action.ticket].greet(self.wire.request)

    def _introduce(self, ticket: e.Ticket, rank: int, hello: Mapping[str, Any]) -> None:
        here = hello.get("pid") in self.launched.local_ranks()
        self.deliver(e.RankAnswered(ticket, rank, {**hello, "here": here}))

    def _query(self, action: e.Query) -> None:
        content = {"handler": action.handler, **action.content}
        report = Report(lambda rank, answer: self.deliver(e.RankAnswered(action.ticket, rank, answer)))
        busy = self.latest.busy if self.latest is not None else set()  # waiting in the cell, they read only control
        for ranks, urgent in ((action.ranks & busy, True), (action.ranks - busy, action.urgent)):
            if ranks:
                self.wire.request(sorted(ranks), "hvd_request", content, report, urgent=urgent)

    def _rendezvous(self, action: e.FormCommunicator) -> None:
        peers = {rank: (member.pid, member.host, member.identity) for rank, member in action.members.items()}
        rendezvous = {
            "size": len(peers),
            "secret": secrets.token_hex(32),
            "ranks": peers,
            "fresh": sorted(action.fresh),
        }
        self._query(e.Query(action.ticket, "rendezvous", frozenset(peers), {**rendezvous, **action.place}))

    def _kill(self, action: e.Kill) -> None:
        for pid in action.pids:
            kill(pid, signal.SIGKILL)

    def _finish_rendezvous(self, _: e.CommunicatorReady) -> None:
        if self.latest is not None:
            self.latest.aborted = False
        self.on_ready()

    def _await_cell(self, action: e.AwaitCell) -> None:
        ended = e.CellEnded(action.ticket)
        if self.latest is None:
            self.deliver(ended)
        else:
            self.latest.over.add_done_callback(lambda _: self.deliver(ended))


_LOG = re.compile(r"rank-(\d+)\.(.+)")
_PIPE = re.compile(STACK_PIPE.format(rank=r"(\d+)()"))
_AWAY = "moving-"


def rename_files(folder: Path, numbers: Mapping[int, int]) -> None:
    """Rename the logs and stack pipes of surviving ranks (old -> new); prefix those of removed ranks with ``left-``."""
    ipython = folder / "ipython"
    if all(old == new for old, new in numbers.items()):
        return
    for place, pattern in ((rank_log.folder(str(ipython)), _LOG), (ipython, _PIPE)):
        matches = {path: match for path in place.glob("*") if (match := pattern.fullmatch(path.name))}
        moved = [path.rename(path.with_name(f"{_AWAY}{path.name}")) for path in matches]  # numbers may be swapped
        for path, match in zip(moved, matches.values(), strict=True):
            rank = numbers.get(int(match[1]))
            name = match[0]
            path.rename(path.with_name(f"left-{name}" if rank is None else name.replace(match[1], str(rank), 1)))
