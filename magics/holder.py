"""The one cluster of this notebook: started when first needed, kept between cells, stopped with the kernel."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_kernel import gpus
from hvd_kernel.cluster import kept
from hvd_kernel.config import ClusterSpec
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.jobs import Job, Jobs

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.kept import Kept
    from hvd_kernel.magics.prompts import Prompts
    from hvd_kernel.protocol import MetricsSample

Say = Callable[[str], None]

OBEY_S = 3.0
"""How long a job may take to obey an interrupt before ``force`` ends the ranks with it."""


def default_n(choice: str = "") -> int:
    """Return the number of ranks when nobody says one: one per GPU of ``--gpus``, else one per core, at most four."""
    devices = gpus.usable(choice or os.environ.get(gpus.CHOICE, "") or "auto", os.environ)
    return devices or min(4, len(os.sched_getaffinity(0)))


class Holder:
    """Holds the session. One cell at a time uses it, or the queue of jobs; a second cell is told to wait."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.cell = 0
        self.samples: dict[int, MetricsSample] = {}  # the latest of each rank, over all cells
        self.prompts: Prompts | None = None  # of the latest run
        self.respawn = ""  # "auto" or "off" as %hvd start said it: whether a cell first replaces dead ranks
        self._busy = threading.Lock()
        self.jobs = Jobs(self._busy)
        self._ended_spec: ClusterSpec | None = None  # of ranks that were ended by force
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

    def hand_over(self, job: Job, prepare: Callable[[], None]) -> None:
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

    def ensure(self, spec: ClusterSpec, say: Say, progress: Say) -> Session:
        """Return a session for ``spec``: the running one, or a new one in its place.

        Parameters
        ----------
        spec
            The cluster that is wanted.
        say
            Told, before it happens, that variables are going to be lost.
        progress
            Told how far the start is.
        """
        if self.session is not None:
            if self.session.spec == spec:
                return self.session
            say(f"{_change(self.session.spec, spec)}: the ranks start again, their variables are lost.")
            self.stop()
        else:
            self._recall(say)
        return self.start(spec, progress)

    def _recall(self, say: Say) -> None:
        """Say that other ranks wait for a kernel of this place, before fresh ones are taken for them."""
        for each in kept.clusters():
            if each.note.place == self.place and not each.note.kernel:
                remedy = f"`%hvd stop`, then `%hvd attach {each.note.name}`"
                say(f"these ranks are fresh; {each.note.name} was kept and has its variables: {remedy}")

    def start(self, spec: ClusterSpec, progress: Say) -> Session:
        """Start a cluster; one that runs is stopped first."""
        from hvd_kernel.cluster import Session  # noqa: PLC0415 - a kernel that uses no ranks need not load ipyparallel

        name = self._name
        self.stop()
        self.session = Session.start(spec, progress)
        self.samples.clear()
        if name:
            self.session.keep(name, self.place)
        return self.session

    def attach(self, kept: Kept, progress: Say) -> Session:
        """Take over a kept cluster.

        Raises
        ------
        ClusterError
            Another kernel has it, or it does not answer.
        """
        from hvd_kernel.cluster.attach import attach  # noqa: PLC0415 - as above

        self.session = session = attach(kept, progress)
        self.samples.clear()
        self.cell = max(self.cell, session.latest.cell if session.latest else 0)
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
        """End with the kernel: kept ranks go on without it, others are stopped."""
        session, self.session = self.session, None
        if session is not None:
            session.end()
        self.jobs.abandon()

    def close(self) -> None:
        """End as with the kernel, which goes on without the magics."""
        atexit.unregister(self.end)
        self.end()

    @property
    def _name(self) -> str:
        """The name under which the ranks are kept."""
        return self.session.kept if self.session else self._ended_name


def _change(old: ClusterSpec, new: ClusterSpec) -> str:
    if old.n != new.n:
        return f"{new.n} rank{'s' * (new.n != 1)} instead of {old.n}"
    return "other GPUs" if old.gpus != new.gpus else "other hosts or MPI options"
