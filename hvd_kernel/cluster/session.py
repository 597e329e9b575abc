"""Session of a cluster: start, run cells, move variables, interrupt, stop.

The main thread may be interrupted (KeyboardInterrupt) in any wait here; the operation continues, and the session stays
usable. An interrupted start is undone. Membership (ranks/membership.py) decides which processes are ranks. Detached
ranks outlive the session: see attach.py.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hvd_kernel.cluster import failure, warm_ranks
from hvd_kernel.cluster.executor import Executor
from hvd_kernel.cluster.launcher import EngineLaunched, Launched, Supervised, possible
from hvd_kernel.cluster.ranks import events, procedure
from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned
from hvd_kernel.cluster.ranks.rank_table import RankStatus, RankTable, chosen_ranks
from hvd_kernel.cluster.requests import transfer
from hvd_kernel.cluster.requests.cell_execution import CellExecution
from hvd_kernel.cluster.requests.cell_rejoin import CellRejoin
from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.launcher import RankSource
    from hvd_kernel.cluster.requests.stream import Stream

_ANSWER_S = 30.0
_MOVE_S = 600.0
_IDLE_S = 2.0  # after the start, before a spare is started beside the ranks
Progress = Callable[[str], None]


def _silence(_text: str) -> None:
    """Ignore progress reports."""


class Change(NamedTuple):
    """Ranks that joined or left between cells; ``left`` has their old numbers."""

    generation: int
    left: tuple[int, ...]
    joined: tuple[int, ...]


class Session:
    """A running cluster. Created by ``Session.start``, or by ``attach.attach`` over a detached one."""

    def __init__(self, spec: ClusterSpec, launched: Supervised, ranks: RankTable | None = None) -> None:
        self.ranks = ranks or RankTable(spec.n, socket.gethostname())
        self.executor = Executor(spec, self.ranks, launched)
        self.executor.on_ready = lambda: self._wire.later(_IDLE_S, self._spare_when_idle)
        self.executor.on_broken = lambda: self._repair.request(self._wire.later, self._reset_when_idle)
        self._repair = Repair()
        self._max_spares = int(lookup.value("HVD_SPARES", os.environ))
        self._changes: list[Change] = []
        self._runs = 0  # number of cells; an interrupt names its cell, because it may overtake it on its own channel

    @staticmethod
    def check(spec: ClusterSpec) -> None:
        """Check that this host can start a cluster, before an earlier one is stopped for it.

        Raises
        ------
        ConfigError, ClusterError
            If something is missing.
        """
        if not spec.on:
            possible(spec)

    @classmethod
    def start(cls, spec: ClusterSpec, progress: Progress | None = None, *, engine: RankSource | None = None) -> Session:
        """Start ``spec.n`` ranks and return when an allreduce over all of them has succeeded.

        ``engine`` starts the processes (``spec.on``); None: mpiexec starts them, here or on the hosts of the spec.

        Raises
        ------
        ClusterError
            With the reason, the end of the ranks' log and a remedy.
        """
        say = progress or _silence
        say(f"starting {plural(spec.n, 'rank')}")
        session: Session | None = None
        try:
            with deferred():
                launched = warm_ranks.adopt(spec) or Launched(spec) if engine is None else EngineLaunched(spec, engine)
                ranks = RankTable(spec.n, socket.gethostname(), engine="" if engine is None else engine.name)
                session = cls(spec, launched, ranks)
                atexit.register(session.end)
            session.executor.call(events.StartRequested, say=say)
            launched.on_ready(session.ask)
        except BaseException:
            if session is not None:
                with deferred():
                    session.stop()
            raise
        return session

    @property
    def spec(self) -> ClusterSpec:
        """The spec of the cluster, with its current size."""
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
        """The cluster's name if the ranks outlive this kernel, else ""."""
        return self.ranks.detached_name

    @property
    def spares(self) -> int:
        """The number of processes that could replace a rank at once."""
        return self.ranks.spares

    def notices(self) -> list[str]:
        """Return and clear the messages for the user about the ranks."""
        notices, self.executor.notices = self.executor.notices, []
        return notices

    @property
    def folder(self) -> Path:
        """The cluster's private folder on this host."""
        return self.executor.launched.folder

    @property
    def supervisor(self) -> int:
        """The process id of the supervisor."""
        return self.executor.launched.pid

    @property
    def latest(self) -> CellExecution | None:
        """The current or most recent cell."""
        return self.executor.latest

    @property
    def running(self) -> bool:
        """True while the ranks run a cell."""
        return self.latest is not None and not self.latest.finished

    @property
    def metrics(self) -> dict[int, MetricsSample]:
        """The latest sample of each rank in the latest cell."""
        return dict(self.latest.metrics) if self.latest else {}

    def run(
        self,
        code: str,
        ranks: Sequence[int] | None = None,
        cell: int = 0,
        *,
        replaces: bool = False,
        independent: bool = False,
    ) -> CellExecution:
        """Start a cell on all ranks, or on some, and return its stream of events.

        ``replaces``: the reader of the events replaces ranks that die in ``elastic.run`` (``rejoin``).
        ``independent``: each rank trains a model of its own, so torch sees no other ranks.

        Raises
        ------
        ClusterError
            If ranks are dead, the previous cell still runs, or the cluster is stopped.
        """
        targets = chosen_ranks(ranks, self.n)
        self.make_ready()
        self.executor.recorder.begin_cell()
        execution = CellExecution(
            targets,
            cell,
            lambda force: self._values(execution, force),
            replaces=replaces,
            independent=independent,
        )
        self.executor.latest = execution
        self._runs += 1
        self._wire.request(targets, "execute_request", execution.request(code, self._runs), execution)
        return execution

    def make_ready(self) -> None:
        """Do the slow steps before a cell starts, and raise the errors of ``run``; ``run`` calls this too."""
        if self.running:
            raise ClusterError("the ranks still run the previous cell: interrupt it first")
        if self.dead:
            raise failure.dead_ranks(self.dead, self.executor.recorder.causes)
        if self.ranks.apart:
            self.respawn()  # completes an interrupted resize
        if self._repair.needed or (self.latest is not None and self.latest.aborted):
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
        """Call a handler of worker/shell/handlers.py on living ranks; return the content and buffers of each answer.

        Parameters
        ----------
        urgent
            Answer at once, on the rank's control thread, also while a cell runs; else between cells.

        Raises
        ------
        ClusterError
            If a rank failed or did not answer in time; names the handler and the rank.
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
        """Call a handler without waiting; return the sink that collects the answers."""
        targets = self._alive(ranks)
        gather = Gather(targets, handler)
        request = {"handler": handler} | (content or {})
        self._wire.request(targets, "hvd_request", request, gather, buffers=buffers, urgent=urgent)
        return gather

    def push(self, variables: dict[str, Any], ranks: Sequence[int] | None = None, *, force: bool = False) -> None:
        """Set variables in the ranks' namespaces, and wait until they are set.

        Raises
        ------
        UsageError
            Before any data is sent, if it is more than HVD_MAX_MOVE bytes and ``force`` is not set.
        """
        transfer.push(variables, self._alive(ranks), self.ranks.here, transfer.limit(force=force), self._query("push"))

    def scatter(self, parts: Mapping[int, dict[str, Any]], *, force: bool = False) -> None:
        """Set variables in the ranks' namespaces, for each rank its own, and wait until they are set.

        Raises
        ------
        UsageError
            Before any data is sent, like ``push``.
        """
        alive = {rank: parts[rank] for rank in self._alive(tuple(parts))}
        transfer.scatter(alive, self.ranks.here, transfer.limit(force=force), self._query("push"))

    def pull(
        self, names: Sequence[str], ranks: Sequence[int] | None = None, *, force: bool = False, whole: bool = True
    ) -> dict[int, dict[str, Any]]:
        """Fetch variables of the ranks; DTensors as whole tensors, or with ``whole=False`` each rank's part.

        Raises
        ------
        ClusterError
            If a variable does not exist or cannot be sent; names the rank and the variable.
        UsageError
            Before any data is sent, if it is more than HVD_MAX_MOVE bytes and ``force`` is not set. Or parts of a
            DTensor are on other ranks.
        """
        query = self._query("pull", names=list(names))
        return transfer.fetch(self._alive(ranks), self.ranks.here, transfer.limit(force=force), query, whole=whole)

    def _query(self, handler: str, **content: Any) -> transfer.Query:
        return lambda ranks, more, buffers: self.ask(handler, ranks, content | more, buffers=buffers, timeout=_MOVE_S)

    def client(self) -> Any:
        """Return an ordinary ``ipyparallel.Client`` of these ranks, which is closed with the session."""
        if self.executor.clients is None:
            raise failure.no_cluster()
        return self.executor.clients.open()

    def reset_communicator(self) -> None:
        """Form a new communicator of all ranks, in any state of the current one."""
        self.ask("reset_communicator", None, timeout=procedure.RENDEZVOUS_S)

    def interrupt(self, ranks: Sequence[int] | None = None) -> None:
        """Raise KeyboardInterrupt in the ranks' cell, also while they wait in a collective. Returns at once."""
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
        """Replace the dead ranks, or these; all other ranks keep their variables, and communication works again.

        Parameters
        ----------
        force
            Also kill and replace living ranks.
        restore
            Variables to copy from the lowest survivor to the fresh ranks, in addition to those of ``hvd_kernel.keep``.

        Raises
        ------
        ClusterError
            If no rank is left, or one cannot be replaced; the message names the remedy.
        """
        chosen = None if ranks is None else frozenset(ranks)
        options = {"force": force, "restore": tuple(restore)}
        try:
            done: Respawned = self.executor.call(events.ReplaceRequested, chosen, say=progress or _silence, **options)
            self._record_change((), done.ranks)
        finally:
            if self.detached_name:
                self.executor.remember()
        return done

    def rejoin(
        self, execution: CellExecution, prepare: Callable[[Respawned], None], progress: Progress | None = None
    ) -> Respawned:
        """Replace the dead while all other ranks wait in ``elastic.run``, and continue the cell on all ranks.

        ``prepare`` is called after the rendezvous, before the fresh ranks run the cell.

        Raises
        ------
        ClusterError
            If that fails; the waiting ranks are released, and the cell ends.
        """
        return CellRejoin(self.executor, execution, self._runs).replace_dead(prepare, progress or _silence)

    def resize(
        self, n: int, drop: Sequence[int] = (), *, restore: Sequence[str] = (), progress: Progress | None = None
    ) -> ResizeOutcome:
        """Resize to n ranks: survivors keep their variables; the newest ranks, or ``drop``, leave; new ranks join.

        While a cell runs, the resize happens at its next commit (``resize_in_cell``), or when it has ended.

        Parameters
        ----------
        drop
            Ranks that leave, of any age; their variables are lost.
        restore
            Variables to copy from the lowest survivor to the fresh ranks, in addition to those of ``hvd_kernel.keep``.

        Raises
        ------
        ClusterError
            If no rank would be left, or ranks do not start; the message names the remedy.
        """
        self._check_resizable(n)
        execution = self.latest
        done: ResizeOutcome | None = None
        if execution is not None and not execution.finished and not drop:
            done = self.resize_in_cell(execution, n, restore=restore, progress=progress)
        if done is None:
            arguments = (n, frozenset(drop), tuple(restore))
            try:
                done = outcome = self.executor.call(events.ResizeRequested, *arguments, say=progress or _silence)
                self._record_change(outcome.left, outcome.respawned.ranks)
            finally:
                if self.detached_name:
                    self.executor.remember()
        assert done is not None
        return done

    def _check_resizable(self, n: int) -> None:
        far = self.ranks.all - self.ranks.here
        if n != self.n and (far or self.spec.limits):
            raise failure.not_resizable(n, far, self.ranks.engine)

    def pop_changes(self) -> list[Change]:
        """Return and clear the changes of ranks between cells."""
        changes, self._changes = self._changes, []
        return changes

    def _record_change(self, left: tuple[int, ...], joined: tuple[int, ...]) -> None:
        if left or joined:
            self._changes.append(Change(self.ranks.generation, left, joined))

    def resize_in_cell(
        self,
        execution: CellExecution,
        n: int,
        *,
        restore: Sequence[str] = (),
        prepare: Callable[[Respawned], None] = lambda _fresh: None,
        progress: Progress | None = None,
    ) -> ResizeOutcome | None:
        """Resize to n ranks at the next commit of a cell in ``elastic.run``, which continues; None if it ended before.

        Any thread, while another one reads the events. ``prepare`` is called after the rendezvous, before the fresh
        ranks run the cell. The ranks with the highest numbers leave; survivors keep their numbers.

        Raises
        ------
        ClusterError
            If another resize is pending, the cell runs on some of the ranks only, or the resize fails.
        """
        if n == self.n and not self.dead:
            return ResizeOutcome(n, n, (), {rank: rank for rank in range(n)})
        if n < 1:
            raise ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
        if execution.resizing:
            raise ClusterError("the ranks are being resized already: at the cell's next commit, or when it ends")
        self._check_resizable(n)
        try:
            rejoin = CellRejoin(self.executor, execution, self._runs)
            return rejoin.resize(n, tuple(restore), prepare, progress or _silence)
        finally:
            if self.detached_name:
                self.executor.remember()

    def status(self) -> list[RankStatus]:
        """Return every rank's process, dead ones included."""
        return self.ranks.status(self.executor.recorder.causes)

    def keep(self, name: str, place: str) -> None:
        """Detach the ranks: they outlive this kernel until they are stopped or have waited for HVD_KEEP_HOURS.

        Parameters
        ----------
        name, place
            Identify the ranks for the next kernel; the place is the folder of the notebook.

        Raises
        ------
        ClusterError
            If they cannot be kept; names the reason.
        """
        wish = messages.Detach(name, place, self.n, float(lookup.value("HVD_KEEP_HOURS", os.environ)))
        self.executor.call(events.DetachRequested, wish, self.supervisor)

    def resume(self, execution: CellExecution, number: int) -> None:
        """Continue a cell that an earlier kernel has begun, the ``number``-th of this cluster."""
        self.executor.latest, self._runs = execution, number

    def end(self) -> None:
        """Leave detached ranks, stop all others. Idempotent."""
        self.leave() if self.detached_name else self.stop()

    def stop(self) -> None:
        """Stop the ranks, and remove every process, file and socket. Idempotent."""
        self._close(self.executor.launched.stop)

    def leave(self) -> None:
        """Disconnect from the ranks: detached ones continue. Idempotent."""
        self._close(self.executor.launched.leave)

    def _close(self, end_ranks: Callable[[], None]) -> None:
        atexit.unregister(self.end)
        self.executor.end(end_ranks)
        if self.latest is not None:  # lets a thread that reads the events finish
            for rank in self.latest.ranks:
                self.latest.on_dead(rank, failure.stopped(rank))

    @property
    def _wire(self) -> Stream:
        return self.executor.wire

    def _values(self, execution: CellExecution, force: bool) -> dict[int, Any]:
        if execution is not self.latest or not execution.done:
            raise ClusterError("a run's values can be fetched when it is done and until the next one starts")
        failed = {failure.rank for failure in execution.failures}
        ranks, name = [rank for rank in execution.ranks if rank not in failed], "the last expression"
        values = transfer.fetch(ranks, self.ranks.here, transfer.limit(force=force), self._query("value", name=name))
        return {rank: value[name] for rank, value in values.items()}

    def _alive(self, ranks: Sequence[int] | None) -> list[int]:
        chosen = () if ranks is not None and not ranks else chosen_ranks(ranks, self.n)
        return [rank for rank in chosen if rank not in self.ranks.dead]

    # I/O thread.

    def _spare_when_idle(self) -> None:
        if self.running:
            self._wire.later(_IDLE_S, self._spare_when_idle)
        else:
            self.executor.launched.send(messages.SetSpares(self._max_spares))
            warm_ranks.fill_in_background(self.spec)

    def _reset_when_idle(self) -> bool:
        if self.running or self.dead:
            return False
        self._repair.done()
        self.post("reset_communicator", None)
        return True


_SOON_S = 0.05  # for all ranks to notice that their communicator has ended
_AGAIN_S = 0.5  # between tries while a cell runs, or a rank is dead


class Repair:
    """Repair of a communicator that a task of an ordinary client has ended: before the next cell, or soon if idle.

    Several ranks report it, and a cell may begin between the first report and the last.
    """

    needed = False
    _is_scheduled = False

    def request(self, later: Callable[[float, Callable[[], None]], None], repair: Callable[[], bool]) -> None:
        """Schedule the repair, unless it is done before; while ``repair`` returns False, it is tried again."""
        self.needed = True
        if not self._is_scheduled:
            self._is_scheduled = True
            later(_SOON_S, lambda: self._try(later, repair))

    def done(self) -> None:
        """Record that the ranks have been asked to form a new communicator."""
        self.needed = False

    def _try(self, later: Callable[[float, Callable[[], None]], None], repair: Callable[[], bool]) -> None:
        if self.needed and not repair():
            later(_AGAIN_S, lambda: self._try(later, repair))
        else:
            self._is_scheduled = False


@contextmanager
def deferred() -> Iterator[None]:
    """Defer KeyboardInterrupt to the end of the block, so that every started cluster is registered to be stopped."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed.is_set():
            signal.raise_signal(signal.SIGINT)
