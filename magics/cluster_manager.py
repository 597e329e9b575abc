"""The cluster of this notebook: started when first needed, kept between cells, stopped with the kernel."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import ClusterError, ConfigError, UsageError
from hvd_kernel.magics import cluster_size, messages
from hvd_kernel.magics.cell_record import History
from hvd_kernel.magics.cluster_request import refuse_change, source
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.jobs import BackgroundJob, Jobs
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.cell_changes import CellChanges
    from hvd_kernel.magics.cell_prompts import CellPrompts
    from hvd_kernel.magics.export import ScriptCell
    from hvd_kernel.processes.detached import DetachedCluster
    from hvd_kernel.protocol.messages import MetricsSample

Report = Callable[[str], None]

MOVE_S = 600.0
"""Time limit for packing, and for unpacking, variables."""

OBEY_S = 3.0
"""Time a job has to end after an interrupt, before ``force`` stops the ranks under it."""

_CROWD = 10
"""Ranks per core at which a start is slow enough for a warning."""


def crowd_warning(spec: ClusterSpec, cores: int) -> str:
    """Return the warning if the ranks outnumber this host's cores tenfold or more; else ""."""
    if spec.hosts or spec.hostfile or spec.on or spec.n < _CROWD * cores:
        return ""
    return messages.crowded(spec.n, cores)


def _warn(spec: ClusterSpec, report: Report) -> None:
    if warning := crowd_warning(spec, len(os.sched_getaffinity(0))):
        report(warning)


class CellCounter:
    """The running cell: its number, which is the notebook's execution count, and its code."""

    def __init__(self) -> None:
        self.number = 1
        self.code = ""
        self._shell: Any = None
        self._without = 0  # cells run without history since the last one with history

    def follow(self, shell: Any) -> None:
        """Count the cells of a shell from now on."""
        self._shell = shell
        self.number = max(1, shell.displayhook.prompt_count)
        shell.events.register("pre_run_cell", self._begin)

    def unfollow(self) -> None:
        """Stop counting."""
        if self._shell is not None:
            self._shell.events.unregister("pre_run_cell", self._begin)

    def _begin(self, info: Any) -> None:
        """Record the cell's number; cells without history (nbval) do not advance the count and get the next numbers."""
        if info.store_history:
            self.number, self._without = self._shell.displayhook.prompt_count, 0
        elif self._shell.displayhook.exec_result is None:
            self.number = self._shell.execution_count + self._without
            self._without += 1
        else:
            return  # run from within another cell, as by %run
        self.code = info.raw_cell


class ClusterManager:
    """Owner of the session. One cell at a time uses it, or the queue of jobs; a second cell is refused."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.cells = CellCounter()
        self.samples: dict[int, MetricsSample] = {}  # the latest of each rank, over all cells
        self.prompts: CellPrompts | None = None  # of the latest run
        self.history = History()
        self.script_cells: list[ScriptCell] = []  # on these ranks, in order
        self.in_cell: Future[CellChanges] | None = None  # resizes the ranks within the running cell
        self.respawn = ""  # "auto" or "off" of %hvd start: whether a cell first replaces dead ranks
        self._busy = threading.Lock()
        self.jobs = Jobs(self._busy)
        self._ended_spec: ClusterSpec | None = None  # of ranks that were stopped by force, or whose start failed
        self.problem = ""  # with the configuration: no ranks start until it is fixed
        self.place = str(Path.cwd())  # the notebook's folder; cells may change the working directory
        self._ended_name = ""  # under which those ranks were kept
        atexit.register(self.end)

    @property
    def spec(self) -> ClusterSpec | None:
        """The specification that the running cluster was started with."""
        return self.session.spec if self.session else self._ended_spec

    @contextmanager
    def use(self, *, force: bool = False) -> Iterator[None]:
        """Lock the ranks against other cells and jobs.

        Parameters
        ----------
        force
            Cancel the jobs that use the ranks; stop the ranks if a job does not end.

        Raises
        ------
        UsageError
            If another cell is running on them.
        """
        if force:
            self._clear()
        self._acquire()
        try:
            yield
        finally:
            self._busy.release()

    def start_job(self, job: BackgroundJob, prepare: Callable[[], None]) -> None:
        """Queue a job; if the queue is empty, prepare the ranks and start it at once.

        Raises
        ------
        UsageError
            If another cell is running on them.
        """
        if self.jobs.join(job):
            return
        self._acquire()
        try:
            prepare()
            self.jobs.begin(job)
        except BaseException:
            self._busy.release()
            raise

    def check_jobs(self, spec: ClusterSpec) -> None:
        """Refuse another cluster while jobs need the running one.

        Raises
        ------
        UsageError
            Naming the job.
        """
        job = self.jobs.at_work()
        if job is not None and spec != self.spec:
            raise UsageError(messages.cluster_in_use(job.sentence(), spec.n))

    def _acquire(self) -> None:
        if self._busy.acquire(blocking=False):
            return
        job = self.jobs.at_work()
        if job is not None:
            raise UsageError(job.sentence())
        if not self._busy.acquire(blocking=False):  # again: the last job may have ended between the two checks
            raise UsageError(messages.BUSY)

    def _clear(self) -> None:
        if not self.jobs.clear(OBEY_S):
            self._ended_spec, name = self.spec, self._name
            self.stop()
            self._ended_name = name

    def ensure(self, spec: ClusterSpec, report: Report, progress: Report, *, force: bool = False) -> Session:
        """Return a session for ``spec``: the running one, resized if need be, or a new one with the kept variables.

        Parameters
        ----------
        spec
            The requested cluster.
        report
            Receives a sentence: before the ranks start again, with which variables; after a resize, its outcome.
        progress
            Receives the progress of the start.
        force
            Allow the loss of variables that no cell has asked to keep.

        Raises
        ------
        UsageError
            Variables would be lost, and ``force`` is false; they are named, and nothing has changed.
        """
        if self.session is None:
            cluster_size.check_room(spec, 0, force=force)
            self._mention_detached(report)
            _warn(spec, report)
            return self.start(spec, progress, report, force=force)
        if self.session.spec == spec:
            return self.session
        refuse_change(self.session.spec, spec)
        cluster_size.check_room(spec, self._living, force=force)
        if cluster_size.differs_in_size_alone(self.session, spec):
            _warn(spec, report)
            cluster_size.resize(self.session, self.samples, spec.n, report, progress, force=force)
            return self.session
        self.session.check(spec)
        change = messages.change_of(self.session.spec, spec)
        names, lost, packed = _packed(self.session, change, force=force)
        report(messages.restart(change, names))
        _warn(spec, report)
        records = self.script_cells if names else []
        self.stop()
        session = self.start(spec, progress, report, force=True)
        self.script_cells = records
        if names:
            answers = session.ask("unpack", None, {"replicated": names}, buffers=[packed], timeout=MOVE_S)
            lost |= {name: reason for content, _ in answers.values() for name, reason in content["lost"].items()}
        if lost:
            report(messages.not_restored(lost).rstrip())
        return session

    def _mention_detached(self, report: Report) -> None:
        """Report the detached clusters of this folder, so that new ranks are not mistaken for them."""
        for cluster in detached.clusters():
            if cluster.note.place == self.place and not cluster.note.kernel:
                report(messages.detached_cluster_exists(cluster.note.name))

    def replaces_dead(self) -> bool:
        """Return whether dead ranks are replaced without asking the user."""
        return (self.respawn or lookup.value("HVD_RESPAWN", os.environ)) == "auto"

    @property
    def _living(self) -> int:
        """The number of living ranks."""
        return self.session.n - len(self.session.dead) if self.session else 0

    def start(
        self, spec: ClusterSpec, progress: Report, report: Report = lambda _text: None, *, force: bool = False
    ) -> Session:
        """Check ``spec``, stop the running cluster, if there is one, and start another.

        ``report`` receives the restrictions of the new ranks; ``force`` allows more ranks than there is room for.

        Raises
        ------
        UsageError
            As ``cluster_size.check_room``.
        ConfigError
            A value of the configuration file cannot be used.
        """
        from hvd_kernel.cluster import Session  # noqa: PLC0415 - a kernel that uses no ranks need not load ipyparallel

        if self.problem:
            raise ConfigError(self.problem)
        Session.check(spec)
        cluster_size.check_room(spec, self._living, force=force)
        engine = source(spec)
        name = self._name
        self.stop()
        self._ended_spec = spec  # after an interrupted start, a line without -np means these ranks
        try:
            self.session = Session.start(spec, progress, engine=engine)
        except KeyboardInterrupt:
            raise Interrupted(messages.start_interrupted(spec.n)) from None
        self._ended_spec = None
        for notice in self.session.notices():
            report(notice)
        self.samples.clear()
        self.script_cells = []
        if name:
            self.session.keep(name, self.place)
        return self.session

    def attach(self, cluster: DetachedCluster, progress: Report) -> Session:
        """Attach to a detached cluster.

        Raises
        ------
        ClusterError
            Another kernel is attached to it, or it does not answer.
        """
        from hvd_kernel.cluster.attach import attach  # noqa: PLC0415 - as above

        self.session = session = attach(cluster, progress)
        self.samples.clear()
        self.script_cells = []
        return session

    def current(self) -> Session:
        """Return the running session.

        Raises
        ------
        ClusterError
            No ranks are running.
        """
        if self.session is None:
            raise ClusterError(messages.NO_RANKS)
        return self.session

    def stop(self) -> None:
        """Stop the cluster, if there is one, and end all jobs; nothing of the cluster is left."""
        session, self.session = self.session, None
        if session is not None:
            session.stop()
        self._ended_name = ""
        self.jobs.abandon()

    def end(self) -> None:
        """Stop the ranks at the end of the kernel; detached ranks continue without it."""
        session, self.session = self.session, None
        if session is not None:
            session.end()
        self.jobs.abandon()

    def close(self) -> None:
        """Unload: stop as at the end of the kernel, which continues without the magics."""
        atexit.unregister(self.end)
        self.cells.unfollow()
        self.end()

    @property
    def _name(self) -> str:
        """The name under which the ranks are kept."""
        return self.session.detached_name if self.session else self._ended_name


def _packed(session: Session, change: str, *, force: bool) -> tuple[list[str], dict[str, str], Any]:
    """Pack the kept variables for new ranks, on the lowest living rank.

    Returns
    -------
    tuple
        The packed names; each name that could not be packed, with the reason; the packed bytes.

    Raises
    ------
    UsageError
        Without ``force``: the ranks hold other variables, which would be lost.
    """
    living = [rank for rank in range(session.n) if rank not in session.dead]
    if not living:
        return [], {}, b""
    answers = [content for content, _ in session.ask("held", living).values()]
    names = sorted(set(answers[0]["replicated"]))  # of the lowest
    others = sorted({name for content in answers for name in content["names"]} - set(names))
    if others and not force:
        raise UsageError(messages.restart_would_lose(change, others))
    if not names:
        return [], {}, b""
    content, buffers = session.ask("pack", living[:1], {"names": names}, timeout=MOVE_S)[living[0]]
    return [name for name in names if name not in content["lost"]], content["lost"], buffers[0]
