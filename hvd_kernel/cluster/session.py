"""A cluster's life: start, run cells, move variables, interrupt, stop.

The main thread may be interrupted (KeyboardInterrupt) in any wait here; what it waited for goes on, and the session
stays usable. A start that is interrupted is undone. Ranks that are kept outlive it: see attach.py.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster import failure, registration
from hvd_kernel.cluster.launcher import Launched, possible
from hvd_kernel.cluster.ranks.deferred_interrupt import deferred
from hvd_kernel.cluster.ranks.status import RankStatus, chosen_ranks
from hvd_kernel.cluster.requests import transfer
from hvd_kernel.cluster.requests.cell_run import Run
from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.cluster.requests.repair import Repair
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.diagnosis.post_mortem import Cause
from hvd_kernel.diagnosis.recorder import Witnesses
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.requests.clients import Clients
    from hvd_kernel.cluster.requests.stream import Stream
    from hvd_kernel.cluster.respawn import Respawned

_ANSWER_S = 30.0
_MOVE_S = 600.0
_IDLE_S = 2.0  # after the start, before a spare is started beside the ranks
_LAST_WORDS_S = 0.05  # a dead rank's last output may still be on its way through the controller
Progress = Callable[[str], None]


class Session:
    """A running cluster. Made by ``Session.start``, or by ``attach.attach`` over a kept one."""

    def __init__(self, spec: ClusterSpec, launched: Supervised) -> None:
        self.spec = spec
        self.n = spec.n
        self._launched = launched
        self._stream: Stream | None = None
        self._clients: Clients | None = None  # ipyparallel's ordinary ones
        self._secret = ""  # shows the hub that it is told of deaths by this kernel
        self._repair = Repair()
        self._ranks: dict[int, RankStatus] = {}
        self._dead: set[int] = set()
        self._here: set[int] = set()  # ranks of this host
        self._by_mpi = set(range(spec.n))  # they end with mpiexec
        self._arrivals: dict[int, RankStatus] = {}  # who is to take a dead rank's place, and has not met the others yet
        self._fallen: set[int] = set()  # arrivals that have died
        self._bare: set[int] = set()  # ranks in the place of dead ones that lack what was kept
        self._changed = threading.Condition()  # of dead, arrivals and fallen
        self.kept = ""  # its name, where the ranks outlive this kernel
        self._unkept = ""  # why they cannot
        self.spares = 0  # processes that could replace a rank at once
        self._spares_wanted = int(lookup.value("HVD_SPARES", os.environ))
        self._witnesses = Witnesses(launched.folder)
        self._latest: Run | None = None
        self._runs = 0  # an interrupt names its run, because it may overtake or be overtaken on its own channel

    @staticmethod
    def check(spec: ClusterSpec) -> None:
        """Refuse what this host cannot start, before anything of an earlier cluster is lost for it.

        Raises
        ------
        ConfigError, ClusterError
            Naming what is missing.
        """
        possible(spec)

    @classmethod
    def start(cls, spec: ClusterSpec, progress: Progress | None = None) -> Session:
        """Start ``spec.n`` ranks and return when an allreduce over all of them has succeeded.

        Raises
        ------
        ClusterError
            With the reason, the end of the ranks' log and a remedy.
        """
        from hvd_kernel.cluster.ready import connect  # noqa: PLC0415 - it is a part of this class

        say = progress or (lambda _text: None)
        say(f"starting {spec.n} rank{'s' if spec.n != 1 else ''}")
        session: Session | None = None
        try:
            with deferred():
                session = cls(spec, Launched(spec))
                atexit.register(session.end)
            connect(session, say)
        except BaseException:
            if session is not None:
                with deferred():
                    session.stop()
            raise
        return session

    @property
    def dead(self) -> tuple[int, ...]:
        """Ranks whose process is gone."""
        return tuple(sorted(self._dead))

    @property
    def folder(self) -> Path:
        """The cluster's private folder on this host."""
        return self._launched.folder

    @property
    def supervisor(self) -> int:
        """The process id of what holds the ranks."""
        return self._launched.pid

    @property
    def latest(self) -> Run | None:
        """The cell that runs, or ran last."""
        return self._latest

    @property
    def running(self) -> bool:
        """True while the ranks run a cell."""
        return self._latest is not None and not self._latest.finished

    @property
    def metrics(self) -> dict[int, MetricsSample]:
        """The latest sample of each rank in the latest run."""
        return dict(self._latest.metrics) if self._latest else {}

    def run(self, code: str, ranks: Sequence[int] | None = None, cell: int = 0) -> Run:
        """Start a cell on all ranks, or on some, and return its stream of events.

        Raises
        ------
        ClusterError
            If ranks are dead, the previous cell still runs, or the cluster is stopped.
        """
        targets = chosen_ranks(ranks, self.n)
        self.make_ready()
        self._witnesses.note()
        run = Run(targets, cell, lambda force: self._values(run, force))
        self._latest = run
        self._runs += 1
        self._wire.request(targets, "execute_request", run.request(code, self._runs), run)
        return run

    def make_ready(self) -> None:
        """Do what may take its time before a cell starts, and raise what ``run`` would; ``run`` does it too."""
        if self._latest is not None and not self._latest.finished:
            raise ClusterError("the ranks still run the previous cell: interrupt it first")
        if self._dead:
            raise failure.dead_ranks(self._dead, self._witnesses.causes)
        if self._repair.needed or (self._latest is not None and self._latest.aborted):  # the communication of all ranks
            self._repair.done()
            self.ask("heal", None)
            if self._latest is not None:
                self._latest.aborted = False

    def ask(
        self,
        verb: str,
        ranks: Sequence[int] | None,
        content: dict[str, Any] | None = None,
        *,
        buffers: Sequence[Any] = (),
        timeout: float = _ANSWER_S,
        urgent: bool = False,
    ) -> dict[int, tuple[Mapping[str, Any], list[Any]]]:
        """Have living ranks do what a verb of ``worker/verbs.py`` says, and return each one's content and buffers.

        Parameters
        ----------
        urgent
            Answered at once, on the rank's control thread, also while a cell runs; else between cells.

        Raises
        ------
        ClusterError
            Naming the verb and the rank that failed or did not answer in time.
        """
        return self.post(verb, ranks, content, buffers=buffers, urgent=urgent).wait(timeout)

    def post(
        self,
        verb: str,
        ranks: Sequence[int] | None,
        content: dict[str, Any] | None = None,
        *,
        buffers: Sequence[Any] = (),
        urgent: bool = False,
    ) -> Gather:
        """Ask without waiting; what is returned collects the answers."""
        targets = self._alive(ranks)
        gather = Gather(targets, verb)
        asked = {"verb": verb} | (content or {})
        self._wire.request(targets, "hvd_request", asked, gather, buffers=buffers, urgent=urgent)
        return gather

    def push(self, variables: dict[str, Any], ranks: Sequence[int] | None = None, *, force: bool = False) -> None:
        """Set variables in the ranks' namespaces, and return when it is done.

        Raises
        ------
        UsageError
            Before anything moves, if that is more than HVD_MAX_MOVE bytes, unless ``force`` says to move them.
        """
        transfer.give(variables, self._alive(ranks), self._here, transfer.limit(force=force), self._mover("push"))

    def pull(
        self, names: Sequence[str], ranks: Sequence[int] | None = None, *, force: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Fetch variables of the ranks.

        Raises
        ------
        ClusterError
            Naming the rank and the variable that is not there or cannot travel.
        UsageError
            Before anything moves, if that is more than HVD_MAX_MOVE bytes, unless ``force`` says to move them.
        """
        ask = self._mover("pull", names=list(names))
        return transfer.fetch(self._alive(ranks), self._here, transfer.limit(force=force), ask)

    def _mover(self, verb: str, **content: Any) -> transfer.Ask:
        return lambda ranks, more, buffers: self.ask(verb, ranks, content | more, buffers=buffers, timeout=_MOVE_S)

    def client(self) -> Any:
        """Return an ordinary ``ipyparallel.Client`` of these ranks, which the session ends with itself."""
        if self._clients is None:
            raise failure.no_cluster()
        return self._clients.open()

    def renew(self) -> None:
        """Give all ranks new communication, whatever has become of theirs."""
        self.ask("heal", None)

    def interrupt(self, ranks: Sequence[int] | None = None) -> None:
        """Raise KeyboardInterrupt in the ranks' cell, also where they wait in a collective. Returns at once."""
        if self._latest is None or self._latest.finished:
            return
        ignored = Gather((), "interrupt")
        content = {"verb": "interrupt", "run": self._runs}
        self._wire.request(self._alive(ranks), "hvd_request", content, ignored, urgent=True)

    def respawn(
        self,
        ranks: Sequence[int] | None = None,
        *,
        force: bool = False,
        restore: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Respawned:
        """Replace the dead ranks, or these; the others keep their variables, and communication works again.

        Parameters
        ----------
        force
            Kill and replace also ranks that live, whatever they are in.
        restore
            Variables that the fresh ranks get from the lowest of the others, beside what ``hvd_kernel.keep`` named.

        Raises
        ------
        ClusterError
            No rank is left, or one cannot be replaced; the message says what to do.
        """
        from hvd_kernel.cluster.respawn import Respawn  # noqa: PLC0415 - it is a part of this class

        try:
            return Respawn(self, restore, progress or (lambda _text: None)).run(ranks, force=force)
        finally:
            self._remember()

    def status(self) -> list[RankStatus]:
        """Return every rank's process, dead ones included."""
        why = {rank: self._witnesses.causes.get(rank, "") for rank in self.dead}
        return [replace(who, alive=rank not in why, why=why.get(rank, "")) for rank, who in sorted(self._ranks.items())]

    def keep(self, name: str, place: str) -> None:
        """Have the ranks outlive this kernel, until somebody stops them or they have waited for HVD_KEEP_HOURS.

        Parameters
        ----------
        name, place
            What the next kernel finds them by; the place is the folder of the notebook.

        Raises
        ------
        ClusterError
            They cannot be kept, and why.
        """
        from hvd_kernel.cluster.attach import keep  # noqa: PLC0415 - it is a part of this class

        keep(self, name, place)

    def end(self) -> None:
        """End with the kernel: kept ranks go on without it, others are stopped. Idempotent."""
        self.leave() if self.kept else self.stop()

    def stop(self) -> None:
        """End the ranks and leave no process, file or socket. Idempotent."""
        self._part(self._launched.stop)

    def leave(self) -> None:
        """Let go of the ranks: kept ones go on. Idempotent."""
        self._part(self._launched.leave)

    def _part(self, how: Callable[[], None]) -> None:
        atexit.unregister(self.end)
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.stop(self._launched.descriptor)
        if self._clients is not None:
            clients, self._clients = self._clients, None
            clients.end()
        self._witnesses.close()
        how()
        if self._latest is not None:  # whoever reads it in another thread shall come to its end
            for rank in self._latest.ranks:
                self._latest.on_dead(rank, failure.stopped(rank))

    @property
    def _wire(self) -> Stream:
        if self._stream is None:
            raise failure.no_cluster()
        return self._stream

    # What the start and the way back (ready.py, attach.py) begin and end with, and what a replacement begins with.

    def _connect(self, connection: Mapping[str, Any]) -> None:
        from hvd_kernel.cluster.requests.clients import Clients  # noqa: PLC0415 - ipyparallel, while processes start
        from hvd_kernel.cluster.requests.stream import Stream  # noqa: PLC0415 - as above

        known = dict(connection)
        self._secret = known.pop(registration.SECRET)
        self._clients = Clients(known)
        self._stream = Stream(known, self._lost, self._notify, self._on_broken)

    def _at_work(self) -> None:
        self._wire.listen(self._launched.descriptor, lambda: self._handle(self._launched.receive()))
        self._wire.soon(self._wire.later, _IDLE_S, self._spare_when_idle)

    def _watch(self, rank: int, pid: int) -> None:
        """Hear of the end of a rank of this host, and why; it may have come already. Have it limited."""
        if self.spec.limits:
            self._launched.send(messages.LimitRank(pid, rank, self.spec.limits[rank]))
        self._witnesses.watch(rank, pid)
        try:
            self._wire.watch(rank, pid)
        except ProcessLookupError:
            self._wire.soon(self._lost, rank, pid)

    def _remember(self) -> None:
        from hvd_kernel.cluster.attach import remember  # noqa: PLC0415 - it is a part of this class

        if self.kept:
            remember(self)

    def _values(self, run: Run, force: bool) -> dict[int, Any]:
        if run is not self._latest or not run.done:
            raise ClusterError("a run's values can be fetched when it is done and until the next one starts")
        failed = {each.rank for each in run.failures}
        ranks, name = [rank for rank in run.ranks if rank not in failed], "the last expression"
        found = transfer.fetch(ranks, self._here, transfer.limit(force=force), self._mover("value", name=name))
        return {rank: value[name] for rank, value in found.items()}

    def _alive(self, ranks: Sequence[int] | None) -> list[int]:
        chosen = () if ranks is not None and not ranks else chosen_ranks(ranks, self.n)
        return [rank for rank in chosen if rank not in self._dead]

    # Replacement: see respawn.py.

    def _make_way(self, ranks: set[int]) -> None:
        """Forget who was to take these ranks' places so far, and have nobody wait for the dead any more."""
        with self._changed:
            self._fallen.clear()
            for rank in ranks:
                self._arrivals.pop(rank, None)
                self._wire.uuids.pop(rank, None)
                self._wire.soon(self._wire.forget, rank, failure.replaced(rank))

    def _admit(self, ranks: set[int]) -> None:
        """Count the arrivals as living.

        Raises
        ------
        ClusterError
            One has died meanwhile.
        """
        with self._changed:
            if self._fallen:
                raise ClusterError(f"rank {min(self._fallen)} died while ranks were replaced")
            self._ranks |= {rank: self._arrivals.pop(rank) for rank in ranks}
            self._dead -= ranks
            self._by_mpi -= ranks
            self._bare |= ranks
        if self._latest is not None:
            self._latest.aborted = False
        self._wire.soon(self._wire.later, _IDLE_S, self._spare_when_idle)

    # I/O thread.

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _spare_when_idle(self) -> None:
        if self._stream is None:
            return
        if self._latest is not None and not self._latest.finished:
            self._stream.later(_IDLE_S, self._spare_when_idle)
        else:
            self._launched.send(messages.SetSpares(self._spares_wanted))

    def _on_broken(self) -> None:
        if self._stream is not None:
            self._repair.ask(self._stream.later, self._heal_when_idle)

    def _heal_when_idle(self) -> None:
        if self._stream is not None and not self.running and not self._dead:
            self._repair.done()
            self.post("heal", None)

    def _on_joining(self, pids: Mapping[int, int]) -> None:
        host = socket.gethostname()
        with self._changed:
            for rank, pid in pids.items():
                self._arrivals[rank] = RankStatus(rank, pid, host, alive=True, device="")
                self._watch(rank, pid)

    def _lost(self, rank: int, pid: int = 0) -> None:
        """Take note of a rank's end; ``pid`` where it is known whose, for who was replaced meanwhile is another."""
        who = self._arrivals.get(rank) or self._ranks.get(rank)
        if self._stream is None or (pid and who is not None and pid != who.pid):
            return
        with self._changed:
            new, known = rank in self._arrivals, rank in self._dead
            (self._fallen if new else self._dead).add(rank)
            self._changed.notify_all()
        if new:
            self._stream.forget(rank, failure.replaced(rank))
        elif not known:
            self._examine(rank)

    def _examine(self, rank: int) -> None:
        assert self._stream is not None
        sample = self.metrics.get(rank)
        resident = sample.rss if sample else 0
        later = self._stream.later
        bury = partial(self._bury, rank, self._wire.uuids.get(rank, ""), time.monotonic())
        pid = self._ranks[rank].pid if rank in self._ranks else 0
        examine = partial(self._witnesses.examine, by_mpi=rank in self._by_mpi)
        later(_LAST_WORDS_S, examine, rank, pid, resident, later, bury)

    def _bury(self, rank: int, uuid: str, at: float, cause: Cause) -> None:
        known = self._ranks.get(rank)
        death = failure.rank_died(rank, known.pid if known else 0, known.host if known else "", cause, at)
        if self._stream is not None and self._stream.uuids.get(rank, "") == uuid:  # else it has been replaced
            self._stream.forget(rank, death)
            self._stream.tell_hub(registration.LOST, {"id": rank, "uuid": uuid, registration.SECRET: self._secret})
        self._remember()

    def _handle(self, received: Sequence[messages.Message]) -> None:
        for message in received:
            match message:
                case messages.RankExited():
                    self._on_end(message.status, {rank: self._ranks[rank].pid for rank in sorted(self._by_mpi)})
                case messages.ChannelClosed():
                    self._on_end(None, dict.fromkeys(range(self.n), 0))
                case messages.RanksJoining():
                    self._on_joining(message.pids)
                case messages.Kept(name):
                    self.kept = name
                case messages.KeepFailed(why):
                    self._unkept = why
                case messages.SparesReady(count):
                    self.spares = count
        self._notify()

    def _on_end(self, status: int | None, pids: Mapping[int, int]) -> None:
        self._witnesses.launcher_ended(status)
        for rank, pid in pids.items():
            self._lost(rank, pid)
        if status is None and self._stream is not None:
            self._stream.unlisten(self._launched.descriptor)
