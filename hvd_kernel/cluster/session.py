"""A cluster's life: start, run cells, move variables, interrupt, stop.

The main thread may be interrupted (KeyboardInterrupt) in any wait here; what it waited for goes on, and the session
stays usable. A start that is interrupted is undone. Who belongs to the cluster, and how that changes, is decided by
ranks/membership.py; ranks that are kept outlive the session: see attach.py.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.by_engine.engine_launch import EngineLaunched
from hvd_kernel.cluster.cell_rendezvous import CellRendezvous
from hvd_kernel.cluster.executor import Executor
from hvd_kernel.cluster.launcher import Launched, possible
from hvd_kernel.cluster.pool import warm_ranks
from hvd_kernel.cluster.ranks import events, procedure
from hvd_kernel.cluster.ranks.deferred_interrupt import deferred
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.rejoin import Respawned
from hvd_kernel.cluster.ranks.resize import ResizeOutcome
from hvd_kernel.cluster.ranks.status import RankStatus, chosen_ranks
from hvd_kernel.cluster.requests import transfer
from hvd_kernel.cluster.requests.cell_run import CellRun
from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.cluster.requests.repair import Repair
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.by_engine.engine import RankSource
    from hvd_kernel.cluster.requests.stream import Stream

_ANSWER_S = 30.0
_MOVE_S = 600.0
_IDLE_S = 2.0  # after the start, before a spare is started beside the ranks
Progress = Callable[[str], None]


def _silence(_text: str) -> None:
    """Say nothing."""


class Change(NamedTuple):
    """Ranks that have come or left between cells; left by their numbers of before."""

    generation: int
    left: tuple[int, ...]
    joined: tuple[int, ...]


class Session:
    """A running cluster. Made by ``Session.start``, or by ``attach.attach`` over a detached one."""

    def __init__(self, spec: ClusterSpec, launched: Supervised, ranks: RankTable | None = None) -> None:
        self.ranks = ranks or RankTable(spec.n, socket.gethostname())
        self.executor = Executor(spec, self.ranks, launched)
        self.executor.on_ready = lambda: self._wire.later(_IDLE_S, self._spare_when_idle)
        self.executor.on_broken = lambda: self._repair.ask(self._wire.later, self._reset_when_idle)
        self._repair = Repair()
        self._spares_wanted = int(lookup.value("HVD_SPARES", os.environ))
        self._changes: list[Change] = []
        self._runs = 0  # an interrupt names its run, because it may overtake or be overtaken on its own channel

    @staticmethod
    def check(spec: ClusterSpec) -> None:
        """Refuse what this host cannot start, before anything of an earlier cluster is lost for it.

        Raises
        ------
        ConfigError, ClusterError
            Naming what is missing.
        """
        if not spec.on:
            possible(spec)

    @classmethod
    def start(cls, spec: ClusterSpec, progress: Progress | None = None, *, engine: RankSource | None = None) -> Session:
        """Start ``spec.n`` ranks and return when an allreduce over all of them has succeeded.

        ``engine``: who has their processes started (``spec.on``); None: mpiexec, here or on the hosts of the spec.

        Raises
        ------
        ClusterError
            With the reason, the end of the ranks' log and a remedy.
        """
        say = progress or _silence
        say(f"starting {spec.n} rank{'s' if spec.n != 1 else ''}")
        session: Session | None = None
        try:
            with deferred():
                launched = warm_ranks.take(spec) or Launched(spec) if engine is None else EngineLaunched(spec, engine)
                ranks = RankTable(spec.n, socket.gethostname(), engine="" if engine is None else engine.name)
                session = cls(spec, launched, ranks)
                atexit.register(session.end)
            session.executor.call(events.StartRequested, say=say)
            launched.up(session.ask)
        except BaseException:
            if session is not None:
                with deferred():
                    session.stop()
            raise
        return session

    @property
    def spec(self) -> ClusterSpec:
        """The cluster that this is, in its size of now."""
        return self.executor.spec

    @property
    def n(self) -> int:
        """The number of ranks."""
        return self.ranks.n

    @property
    def dead(self) -> tuple[int, ...]:
        """Ranks whose process is gone."""
        return tuple(sorted(self.ranks.dead))

    @property
    def detached_name(self) -> str:
        """The cluster's name, where the ranks outlive this kernel."""
        return self.ranks.detached_name

    @property
    def spares(self) -> int:
        """How many processes could replace a rank at once."""
        return self.ranks.spares

    def notices(self) -> list[str]:
        """Return what the user should know of the ranks, and has not been told."""
        told, self.executor.notices = self.executor.notices, []
        return told

    @property
    def folder(self) -> Path:
        """The cluster's private folder on this host."""
        return self.executor.launched.folder

    @property
    def supervisor(self) -> int:
        """The process id of what holds the ranks."""
        return self.executor.launched.pid

    @property
    def latest(self) -> CellRun | None:
        """The cell that runs, or ran last."""
        return self.executor.latest

    @property
    def running(self) -> bool:
        """True while the ranks run a cell."""
        return self.latest is not None and not self.latest.finished

    @property
    def metrics(self) -> dict[int, MetricsSample]:
        """The latest sample of each rank in the latest run."""
        return dict(self.latest.metrics) if self.latest else {}

    def run(self, code: str, ranks: Sequence[int] | None = None, cell: int = 0, *, replaces: bool = False) -> CellRun:
        """Start a cell on all ranks, or on some, and return its stream of events.

        ``replaces``: whoever reads them replaces ranks that die while others wait for that (``rejoin``).

        Raises
        ------
        ClusterError
            If ranks are dead, the previous cell still runs, or the cluster is stopped.
        """
        targets = chosen_ranks(ranks, self.n)
        self.make_ready()
        self.executor.recorder.begin_cell()
        run = CellRun(targets, cell, lambda force: self._values(run, force), replaces=replaces)
        self.executor.latest = run
        self._runs += 1
        self._wire.request(targets, "execute_request", run.request(code, self._runs), run)
        return run

    def make_ready(self) -> None:
        """Do what may take its time before a cell starts, and raise what ``run`` would; ``run`` does it too."""
        if self.running:
            raise ClusterError("the ranks still run the previous cell: interrupt it first")
        if self.dead:
            raise failure.dead_ranks(self.dead, self.executor.recorder.causes)
        if self.ranks.apart:
            self.respawn()  # a resize that was interrupted ends here
        if self._repair.needed or (self.latest is not None and self.latest.aborted):  # the communication of all ranks
            self._repair.done()
            self.reset_communicator()
            if self.latest is not None:
                self.latest.aborted = False

    def ask(
        self,
        handler: str,
        ranks: Sequence[int] | None,
        content: dict[str, Any] | None = None,
        *,
        buffers: Sequence[Any] = (),
        timeout: float = _ANSWER_S,
        urgent: bool = False,
    ) -> dict[int, tuple[Mapping[str, Any], list[Any]]]:
        """Call a handler of worker/shell/handlers.py on living ranks; return each one's content and buffers.

        Parameters
        ----------
        urgent
            Answered at once, on the rank's control thread, also while a cell runs; else between cells.

        Raises
        ------
        ClusterError
            Naming the handler and the rank that failed or did not answer in time.
        """
        return self.post(handler, ranks, content, buffers=buffers, urgent=urgent).wait(timeout)

    def post(
        self,
        handler: str,
        ranks: Sequence[int] | None,
        content: dict[str, Any] | None = None,
        *,
        buffers: Sequence[Any] = (),
        urgent: bool = False,
    ) -> Gather:
        """Ask without waiting; what is returned collects the answers."""
        targets = self._alive(ranks)
        gather = Gather(targets, handler)
        asked = {"handler": handler} | (content or {})
        self._wire.request(targets, "hvd_request", asked, gather, buffers=buffers, urgent=urgent)
        return gather

    def push(self, variables: dict[str, Any], ranks: Sequence[int] | None = None, *, force: bool = False) -> None:
        """Set variables in the ranks' namespaces, and return when it is done.

        Raises
        ------
        UsageError
            Before anything moves, if that is more than HVD_MAX_MOVE bytes, unless ``force`` says to move them.
        """
        transfer.give(variables, self._alive(ranks), self.ranks.here, transfer.limit(force=force), self._mover("push"))

    def scatter(self, parts: Mapping[int, dict[str, Any]], *, force: bool = False) -> None:
        """Set variables in the ranks' namespaces, to each rank its own, and return when it is done.

        Raises
        ------
        UsageError
            Before anything moves, as ``push``.
        """
        alive = {rank: parts[rank] for rank in self._alive(tuple(parts))}
        transfer.deal(alive, self.ranks.here, transfer.limit(force=force), self._mover("push"))

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
        return transfer.fetch(self._alive(ranks), self.ranks.here, transfer.limit(force=force), ask)

    def _mover(self, handler: str, **content: Any) -> transfer.Ask:
        return lambda ranks, more, buffers: self.ask(handler, ranks, content | more, buffers=buffers, timeout=_MOVE_S)

    def client(self) -> Any:
        """Return an ordinary ``ipyparallel.Client`` of these ranks, which the session ends with itself."""
        if self.executor.clients is None:
            raise failure.no_cluster()
        return self.executor.clients.open()

    def reset_communicator(self) -> None:
        """Give all ranks new communication, whatever has become of theirs."""
        self.ask("reset_communicator", None, timeout=procedure.RENDEZVOUS_S)

    def interrupt(self, ranks: Sequence[int] | None = None) -> None:
        """Raise KeyboardInterrupt in the ranks' cell, also where they wait in a collective. Returns at once."""
        if not self.running:
            return
        ignored = Gather((), "interrupt")
        content = {"handler": "interrupt", "run": self._runs}
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
        chosen = None if ranks is None else frozenset(ranks)
        how = {"force": force, "restore": tuple(restore)}
        try:
            done: Respawned = self.executor.call(events.ReplaceRequested, chosen, say=progress or _silence, **how)
            self._note((), done.ranks)
        finally:
            if self.detached_name:
                self.executor.remember()
        return done

    def rejoin(self, run: CellRun, prepare: Callable[[Respawned], None], progress: Progress | None = None) -> Respawned:
        """Replace the dead while the others wait in ``elastic.run``, and have the cell go on on all ranks.

        ``prepare`` is called when all have met, before the fresh ranks run the cell.

        Raises
        ------
        ClusterError
            It could not be done; nobody waits any more, and the cell ends.
        """
        return CellRendezvous(self.executor, run, self._runs).replace_dead(prepare, progress or _silence)

    def resize(
        self, n: int, drop: Sequence[int] = (), *, restore: Sequence[str] = (), progress: Progress | None = None
    ) -> ResizeOutcome:
        """Have n ranks: who lives stays, with its variables; the youngest leave, or those that are named; others come.

        While a cell runs it is done at its next commit (``resize_in_cell``), or when it has ended.

        Parameters
        ----------
        drop
            Ranks that leave, whatever their age; their variables go with them.
        restore
            Variables that the fresh ranks get from the lowest of the others, beside what ``hvd_kernel.keep`` named.

        Raises
        ------
        ClusterError
            Nobody would be left, or ranks do not come; the message says what to do.
        """
        self._check_resizable(n)
        run = self.latest
        done: ResizeOutcome | None = None
        if run is not None and not run.finished and not drop:
            done = self.resize_in_cell(run, n, restore=restore, progress=progress)
        if done is None:
            asked = (n, frozenset(drop), tuple(restore))
            try:
                done = plain = self.executor.call(events.ResizeRequested, *asked, say=progress or _silence)
                self._note(plain.left, plain.given.ranks)
            finally:
                if self.detached_name:
                    self.executor.remember()
        assert done is not None
        return done

    def _check_resizable(self, n: int) -> None:
        far = self.ranks.everybody - self.ranks.here
        if n != self.n and (far or self.spec.limits):
            raise failure.not_resizable(n, far, self.ranks.engine)

    def take_changes(self) -> list[Change]:
        """Return who has come or left between cells, since this was asked last."""
        taken, self._changes = self._changes, []
        return taken

    def _note(self, left: tuple[int, ...], joined: tuple[int, ...]) -> None:
        if left or joined:
            self._changes.append(Change(self.ranks.generation, left, joined))

    def resize_in_cell(
        self,
        run: CellRun,
        n: int,
        *,
        restore: Sequence[str] = (),
        prepare: Callable[[Respawned], None] = lambda _given: None,
        progress: Progress | None = None,
    ) -> ResizeOutcome | None:
        """Have n ranks at the next commit of a cell in ``elastic.run``, which goes on; None: it has ended before.

        Any thread, while another one reads the run. ``prepare`` is called when all have met, before the fresh ranks run
        the cell. The ranks with the highest numbers leave: no other gets another number.

        Raises
        ------
        ClusterError
            Another resize waits for its commit, the cell is on some ranks only, or it could not be done.
        """
        if n == self.n and not self.dead:
            return ResizeOutcome(n, n, (), {rank: rank for rank in range(n)})
        if n < 1:
            raise ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
        if run.resizing:
            raise ClusterError("the ranks are being resized already: at the cell's next commit, or when it ends")
        self._check_resizable(n)
        try:
            within = CellRendezvous(self.executor, run, self._runs)
            return within.resize(n, tuple(restore), prepare, progress or _silence)
        finally:
            if self.detached_name:
                self.executor.remember()

    def status(self) -> list[RankStatus]:
        """Return every rank's process, dead ones included."""
        return self.ranks.status(self.executor.recorder.causes)

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
        wish = messages.Detach(name, place, self.n, float(lookup.value("HVD_KEEP_HOURS", os.environ)))
        self.executor.call(events.DetachRequested, wish, self.supervisor)

    def resume(self, run: CellRun, number: int) -> None:
        """Go on with a run that an earlier kernel has begun, the ``number``-th of this cluster."""
        self.executor.latest, self._runs = run, number

    def end(self) -> None:
        """End with the kernel: detached ranks go on without it, others are stopped. Idempotent."""
        self.leave() if self.detached_name else self.stop()

    def stop(self) -> None:
        """End the ranks and leave no process, file or socket. Idempotent."""
        self._part(self.executor.launched.stop)

    def leave(self) -> None:
        """Let go of the ranks: detached ones go on. Idempotent."""
        self._part(self.executor.launched.leave)

    def _part(self, how: Callable[[], None]) -> None:
        atexit.unregister(self.end)
        self.executor.end(how)
        if self.latest is not None:  # whoever reads it in another thread shall come to its end
            for rank in self.latest.ranks:
                self.latest.on_dead(rank, failure.stopped(rank))

    @property
    def _wire(self) -> Stream:
        return self.executor.wire

    def _values(self, run: CellRun, force: bool) -> dict[int, Any]:
        if run is not self.latest or not run.done:
            raise ClusterError("a run's values can be fetched when it is done and until the next one starts")
        failed = {each.rank for each in run.failures}
        ranks, name = [rank for rank in run.ranks if rank not in failed], "the last expression"
        found = transfer.fetch(ranks, self.ranks.here, transfer.limit(force=force), self._mover("value", name=name))
        return {rank: value[name] for rank, value in found.items()}

    def _alive(self, ranks: Sequence[int] | None) -> list[int]:
        chosen = () if ranks is not None and not ranks else chosen_ranks(ranks, self.n)
        return [rank for rank in chosen if rank not in self.ranks.dead]

    # I/O thread.

    def _spare_when_idle(self) -> None:
        if self.running:
            self._wire.later(_IDLE_S, self._spare_when_idle)
        else:
            self.executor.launched.send(messages.SetSpares(self._spares_wanted))
            warm_ranks.fill_beside(self.spec)

    def _reset_when_idle(self) -> bool:
        if self.running or self.dead:
            return False
        self._repair.done()
        self.post("reset_communicator", None)
        return True
