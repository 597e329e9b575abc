"""The one cluster of this notebook: started when first needed, kept between cells, stopped with the kernel."""

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
from hvd_kernel.formatting.plural import plural
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.engines.engine_option import refuse_change
from hvd_kernel.magics.engines.sources import source
from hvd_kernel.magics.history.store import History
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.jobs import BackgroundJob, Jobs
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.cell_rejoin import CellRejoin
    from hvd_kernel.magics.export.ran_cell import RanCell
    from hvd_kernel.magics.shell.prompts import RunPrompts
    from hvd_kernel.processes.detached import DetachedCluster
    from hvd_kernel.protocol.messages import MetricsSample

Say = Callable[[str], None]

MOVE_S = 600.0
"""How long variables may take to be packed, or to be unpacked."""

OBEY_S = 3.0
"""How long a job may take to obey an interrupt before ``force`` ends the ranks with it."""

_CROWD = 10
"""Ranks on a core, from which on the start is so slow that it is worth a word."""


def crowd(spec: ClusterSpec, cores: int) -> str:
    """Return what to say before a start in which the ranks outnumber this host's cores tenfold; "" in any other."""
    if spec.hosts or spec.hostfile or spec.on or spec.n < _CROWD * cores:
        return ""
    named = f"{spec.n} ranks on {cores} core{'s' if cores != 1 else ''}"
    remedy = f"If fewer will do, interrupt it and say, for example, -np {2 * cores}."
    return f"{named}: {spec.n // cores} take turns on each, and the start may take minutes. {remedy}"


def _warn(spec: ClusterSpec, say: Say) -> None:
    if warning := crowd(spec, len(os.sched_getaffinity(0))):
        say(warning)


class CellCount:
    """The number that the notebook gives the cell that runs: its execution count; and the cell's code."""

    def __init__(self) -> None:
        self.number = 1
        self.code = ""
        self._shell: Any = None
        self._without = 0  # cells without history since the last that has one

    def follow(self, shell: Any) -> None:
        """Count a shell's cells from here on."""
        self._shell = shell
        self.number = max(1, shell.displayhook.prompt_count)
        shell.events.register("pre_run_cell", self._begin)

    def leave(self) -> None:
        """Count no more."""
        if self._shell is not None:
            self._shell.events.unregister("pre_run_cell", self._begin)

    def _begin(self, info: Any) -> None:
        """Take the count; it stands still while a tool (nbval) runs cells without history, which get the next ones."""
        if info.store_history:
            self.number, self._without = self._shell.displayhook.prompt_count, 0
        elif self._shell.displayhook.exec_result is None:
            self.number = self._shell.execution_count + self._without
            self._without += 1
        else:
            return  # another cell runs this one, as %run does
        self.code = info.raw_cell


class ClusterManager:
    """Holds the session. One cell at a time uses it, or the queue of jobs; a second cell is told to wait."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.cells = CellCount()
        self.samples: dict[int, MetricsSample] = {}  # the latest of each rank, over all cells
        self.prompts: RunPrompts | None = None  # of the latest run
        self.history = History()
        self.ran: list[RanCell] = []  # on these ranks, in order
        self.in_cell: Future[CellRejoin] | None = None  # who has ranks come and leave in the cell that runs
        self.respawn = ""  # "auto" or "off" as %hvd start said it: whether a cell first replaces dead ranks
        self._busy = threading.Lock()
        self.jobs = Jobs(self._busy)
        self._ended_spec: ClusterSpec | None = None  # of ranks that were ended by force, or that never came up
        self.problem = ""  # of the configuration: no ranks start with another one than is asked for
        self.place = str(Path.cwd())  # the notebook's folder; its cells may go elsewhere
        self._ended_name = ""  # under which they were kept
        atexit.register(self.end)

    @property
    def spec(self) -> ClusterSpec | None:
        """What the running cluster was started with."""
        return self.session.spec if self.session else self._ended_spec

    @contextmanager
    def use(self, *, force: bool = False) -> Iterator[None]:
        """Keep others away from the ranks.

        Parameters
        ----------
        force
            End the jobs that have them, if need be with the ranks.

        Raises
        ------
        UsageError
            If another cell is running on them.
        """
        if force:
            self._clear()
        self._take()
        try:
            yield
        finally:
            self._busy.release()

    def hand_over(self, job: BackgroundJob, prepare: Callable[[], None]) -> None:
        """Give the ranks to a job, which waits for its turn behind others; without others they are prepared first.

        Raises
        ------
        UsageError
            If another cell is running on them.
        """
        if self.jobs.join(job):
            return
        self._take()
        try:
            prepare()
            self.jobs.begin(job)
        except BaseException:
            self._busy.release()
            raise

    def keep(self, spec: ClusterSpec) -> None:
        """Refuse another cluster as long as jobs need the one that runs.

        Raises
        ------
        UsageError
            Naming the job.
        """
        job = self.jobs.at_work()
        if job is not None and spec != self.spec:
            remedy = f"%hvd restart -np {spec.n} --force ends it"
            raise UsageError(f"another cluster cannot start: {job.sentence()}; {remedy}")

    def _take(self) -> None:
        if self._busy.acquire(blocking=False):
            return
        job = self.jobs.at_work()
        if job is not None:
            raise UsageError(job.sentence())
        if not self._busy.acquire(blocking=False):  # again: the last job may have ended between the two looks
            raise UsageError("the ranks are busy with another cell: wait for it or interrupt it")

    def _clear(self) -> None:
        if not self.jobs.clear(OBEY_S):
            self._ended_spec, name = self.spec, self._name
            self.stop()
            self._ended_name = name

    def ensure(self, spec: ClusterSpec, say: Say, progress: Say, *, force: bool = False) -> Session:
        """Return a session for ``spec``: the running one, also in another size, or a new one with what was to be kept.

        Parameters
        ----------
        spec
            The cluster that is wanted.
        say
            Told, before it happens, that the ranks start again, and with what; or who has come and left.
        progress
            Told how far the start is.
        force
            Variables that no cell has asked to keep may be lost.

        Raises
        ------
        UsageError
            They would be, and ``force`` is not there; they are named, and nothing has happened.
        """
        if self.session is None:
            cluster_size.check_room(spec, 0, force=force)
            self._recall(say)
            _warn(spec, say)
            return self.start(spec, progress, say, force=force)
        if self.session.spec == spec:
            return self.session
        refuse_change(self.session.spec, spec)
        cluster_size.check_room(spec, self._living, force=force)
        if cluster_size.differs_in_size_alone(self.session, spec):
            _warn(spec, say)
            cluster_size.resize(self.session, self.samples, spec.n, say, progress, force=force)
            return self.session
        self.session.check(spec)
        change = _change(self.session.spec, spec)
        names, lost, packed = _packed(self.session, change, force=force)
        with_what = f" with {', '.join(names)} from the ranks before" if names else ""
        say(f"{change}: the ranks start again{with_what}.")
        _warn(spec, say)
        ran = self.ran if names else []
        self.stop()
        session = self.start(spec, progress, say, force=True)
        self.ran = ran
        if names:
            told = session.ask("unpack", None, {"replicated": names}, buffers=[packed], timeout=MOVE_S)
            lost |= {name: why for content, _ in told.values() for name, why in content["lost"].items()}
        if lost:
            say(cluster_size.missing(lost).rstrip())
        return session

    def _recall(self, say: Say) -> None:
        """Say that other ranks wait for a kernel of this place, before fresh ones are taken for them."""
        for each in detached.clusters():
            if each.note.place == self.place and not each.note.kernel:
                remedy = f"`%hvd stop`, then `%hvd attach {each.note.name}`"
                say(f"these ranks are fresh; {each.note.name} was kept and has its variables: {remedy}")

    def replaces_dead(self) -> bool:
        """Tell whether dead ranks are replaced without asking the user."""
        return (self.respawn or lookup.value("HVD_RESPAWN", os.environ)) == "auto"

    @property
    def _living(self) -> int:
        """The number of ranks that run."""
        return self.session.n - len(self.session.dead) if self.session else 0

    def start(self, spec: ClusterSpec, progress: Say, say: Say = lambda _text: None, *, force: bool = False) -> Session:
        """Start a cluster; one that runs is stopped first, unless ``spec`` asks for what is not there.

        ``say`` reports what the ranks have to do without; with ``force`` there may be more than the machine holds.

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
        self._ended_spec = spec  # if the start is interrupted, the next line without -np means these ranks
        try:
            self.session = Session.start(spec, progress, engine=engine)
        except KeyboardInterrupt:
            who, them = ("1 rank", "it") if spec.n == 1 else (f"{spec.n} ranks", "them")
            lost = f"the start of {who} was interrupted and undone; %%hvdrun starts {them} anew"
            raise Interrupted(lost) from None
        self._ended_spec = None
        for notice in self.session.notices():
            say(notice)
        self.samples.clear()
        self.ran = []
        if name:
            self.session.keep(name, self.place)
        return self.session

    def attach(self, cluster: DetachedCluster, progress: Say) -> Session:
        """Take over a detached cluster.

        Raises
        ------
        ClusterError
            Another kernel has it, or it does not answer.
        """
        from hvd_kernel.cluster.attach import attach  # noqa: PLC0415 - as above

        self.session = session = attach(cluster, progress)
        self.samples.clear()
        self.ran = []
        return session

    def current(self) -> Session:
        """Return the running session.

        Raises
        ------
        ClusterError
            If there is none.
        """
        if self.session is None:
            raise ClusterError("no ranks are running: %hvd start -np 4 starts them, or any %%hvdrun cell")
        return self.session

    def stop(self) -> None:
        """Stop the cluster if there is one; afterwards nothing of it is left, and no job runs."""
        session, self.session = self.session, None
        if session is not None:
            session.stop()
        self._ended_name = ""
        self.jobs.abandon()

    def end(self) -> None:
        """End with the kernel: detached ranks go on without it, others are stopped."""
        session, self.session = self.session, None
        if session is not None:
            session.end()
        self.jobs.abandon()

    def close(self) -> None:
        """End as with the kernel, which goes on without the magics."""
        atexit.unregister(self.end)
        self.cells.leave()
        self.end()

    @property
    def _name(self) -> str:
        """The name under which the ranks are kept."""
        return self.session.detached_name if self.session else self._ended_name


def _packed(session: Session, change: str, *, force: bool) -> tuple[list[str], dict[str, str], Any]:
    """Return the names that go to fresh ranks, those that cannot and why, and what the lowest living rank has packed.

    Raises
    ------
    UsageError
        Without ``force``: the ranks hold other variables too.
    """
    living = [rank for rank in range(session.n) if rank not in session.dead]
    if not living:
        return [], {}, b""
    answers = [content for content, _ in session.ask("held", living).values()]
    names = sorted(set(answers[0]["replicated"]))  # of the lowest
    others = sorted({name for content in answers for name in content["names"]} - set(names))
    if others and not force:
        listed = cluster_size.listed(others)
        raise UsageError(
            f"{change}: the ranks would start again, and {listed} there would be lost. Add --force to lose "
            f"{'it' if len(others) == 1 else 'them'}, or call hvd_kernel.keep({others[0]!r}) in a cell on the ranks"
        )
    if not names:
        return [], {}, b""
    content, buffers = session.ask("pack", living[:1], {"names": names}, timeout=MOVE_S)[living[0]]
    return [name for name in names if name not in content["lost"]], content["lost"], buffers[0]


def _change(old: ClusterSpec, new: ClusterSpec) -> str:
    if old.n != new.n:
        return f"{plural(new.n, 'rank')} instead of {old.n}"
    if old.limits != new.limits:
        return "other limits"
    if old.mps != new.mps:
        return "no private MPS daemon"
    return "other GPUs" if old.gpus != new.gpus else "other hosts or MPI options"
