"""The one cluster of this notebook: started when first needed, kept between cells, stopped with the kernel."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_kernel.config import ClusterSpec
from hvd_kernel.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.protocol import MetricsSample

Say = Callable[[str], None]


def default_n() -> int:
    """Return the number of ranks when nobody says one: one per GPU, else one per core, at most four."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return gpus or min(4, len(os.sched_getaffinity(0)))


class Holder:
    """Holds the session. One cell at a time uses it; a second one (from a subshell) is told to wait."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.cell = 0
        self.samples: dict[int, MetricsSample] = {}  # the latest of each rank, over all cells
        self._busy = threading.Lock()
        atexit.register(self.stop)

    @property
    def spec(self) -> ClusterSpec | None:
        """What the running cluster was started with."""
        return self.session.spec if self.session else None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep others away from the ranks.

        Raises
        ------
        UsageError
            If another cell is running on them.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError("the ranks are busy with another cell: wait for it or interrupt it")
        try:
            yield
        finally:
            self._busy.release()

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
        return self.start(spec, progress)

    def start(self, spec: ClusterSpec, progress: Say) -> Session:
        """Start a cluster; one that runs is stopped first."""
        from hvd_kernel.cluster import Session  # noqa: PLC0415 - a kernel that uses no ranks need not load ipyparallel

        self.stop()
        self.session = Session.start(spec, progress)
        self.samples.clear()
        return self.session

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
        """Stop the cluster if there is one; afterwards nothing of it is left."""
        session, self.session = self.session, None
        if session is not None:
            session.stop()


def _change(old: ClusterSpec, new: ClusterSpec) -> str:
    if old.n != new.n:
        return f"{new.n} rank{'s' * (new.n != 1)} instead of {old.n}"
    return "other hosts or MPI options"
