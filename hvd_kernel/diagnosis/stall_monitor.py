"""Stall monitor of one cell: determines why ranks wait. It never blocks, except for a rank's signal handler."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hvd_kernel.diagnosis.inquiry import Cluster, Inquiry, stopped
from hvd_kernel.diagnosis.stall import Activity, awaited, sentence, whereabouts
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import MetricsSample, Whereabouts

PROC_S = 0.2
"""Between two polls of /proc: a rank seen stopped twice in a row is stopped, not paused for a moment."""

QUERY_S = 2.0
"""Between two queries to the ranks."""

LATE_S = 0.4
"""A tick this late means that the notebook was delayed, and that samples of the meantime are still unread."""


class StallMonitor:
    """Feed it samples and call ``tick`` often; ``sentence`` describes why ranks wait, "" while they do not.

    ``awaited`` holds the ranks for which they wait.
    """

    def __init__(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        self.sentence = ""
        self.awaited: set[int] = set()
        self._cluster = cluster
        self._ranks = tuple(ranks)
        self._ticked = time.monotonic()
        self._activity = Activity(ranks, self._ticked)
        self._seen_stopped: set[int] = set()
        self._stopped: set[int] = set()
        self._polled = self._queried = 0.0
        self._inquiry: Inquiry | None = None
        self._places: dict[int, Whereabouts] = {}

    def observe(self, sample: MetricsSample) -> None:
        """Record a sample of the run."""
        self._activity.observe(sample, time.monotonic())

    def tick(self) -> None:
        """Poll the processes, start an inquiry, or collect its answers, whatever is due."""
        now = time.monotonic()
        if now - self._ticked >= LATE_S:
            self._activity.begin_again(now)
        self._ticked = now
        if now - self._polled >= PROC_S:
            self._polled = now
            self._poll_processes()
        if not self._activity.some_wait(now):
            self._places, self._inquiry = {}, None
        elif self._inquiry is not None:
            self._collect(self._inquiry, now)
        elif now - self._queried >= QUERY_S:
            self._inquire(now)
        halted = {rank: Whereabouts(rank, "stopped") for rank in self._stopped}
        self.awaited = awaited(self._places)
        self.sentence = sentence(self._places | halted, self._ranks) or whereabouts(halted)

    def _poll_processes(self) -> None:
        """Update the set of stopped ranks."""
        seen = stopped(self._cluster) & set(self._ranks)
        certain = seen & self._seen_stopped
        if certain != self._stopped:
            self._places, self._inquiry, self._queried = {}, None, 0.0  # the known places are outdated
        self._seen_stopped, self._stopped = seen, certain

    def _inquire(self, now: float) -> None:
        self._queried = now
        try:
            self._inquiry = Inquiry(self._cluster, range(self._cluster.n))
        except ClusterError:  # the cluster is being stopped
            self._inquiry = None

    def _collect(self, inquiry: Inquiry, now: float) -> None:
        """Collect the answers once no more are expected, and inspect ranks that send nothing at all from outside."""
        late = inquiry.silent()
        mute = late & (self._activity.silent(now) | self._stopped | set(self._cluster.dead))
        if mute == late or now - self._queried >= QUERY_S:
            answers = {rank: place for rank, place in inquiry.answers().items() if not self._is_between(place)}
            self._places, self._inquiry = answers | inquiry.from_outside(mute), None

    def _is_between(self, place: Whereabouts) -> bool:
        """Return whether a rank answered before it began the cell, or just as it finished it."""
        return place.state == "idle" and self._activity.runs(place.rank)
