"""Stall monitor of one cell: finds out why ranks wait. It never waits itself, but for a signal handler."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hvd_kernel.diagnosis.inquiry import Cluster, Inquiry, stopped
from hvd_kernel.diagnosis.stall import Activity, awaited, sentence, whereabouts
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import MetricsSample, Whereabouts

PROC_S = 0.2
"""Between two looks at /proc: a rank that is stopped twice in a row is stopped, not paused for a moment."""

ASK_S = 2.0
"""Between two questions to the ranks."""

LATE_S = 0.4
"""A tick that comes this late: the notebook was held up, and samples of the time between are yet to be read."""


class StallMonitor:
    """Give it samples and call ``tick`` often; ``sentence`` says why ranks wait, "" while they do not.

    ``awaited`` has the ranks for which they wait.
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
        self._looked = self._asked = 0.0
        self._inquiry: Inquiry | None = None
        self._known: dict[int, Whereabouts] = {}

    def observe(self, sample: MetricsSample) -> None:
        """Take a sample of the run."""
        self._activity.observe(sample, time.monotonic())

    def tick(self) -> None:
        """Look, ask, or take answers, whatever is due."""
        now = time.monotonic()
        if now - self._ticked >= LATE_S:
            self._activity.begin_again(now)
        self._ticked = now
        if now - self._looked >= PROC_S:
            self._looked = now
            self._look_at_processes()
        if not self._activity.some_wait(now):
            self._known, self._inquiry = {}, None
        elif self._inquiry is not None:
            self._take_answers(self._inquiry, now)
        elif now - self._asked >= ASK_S:
            self._ask(now)
        halted = {rank: Whereabouts(rank, "stopped") for rank in self._stopped}
        self.awaited = awaited(self._known)
        self.sentence = sentence(self._known | halted, self._ranks) or whereabouts(halted)

    def _look_at_processes(self) -> None:
        """See who is stopped."""
        seen = stopped(self._cluster) & set(self._ranks)
        certain = seen & self._seen_stopped
        if certain != self._stopped:
            self._known, self._inquiry, self._asked = {}, None, 0.0  # what is known is not true any more
        self._seen_stopped, self._stopped = seen, certain

    def _ask(self, now: float) -> None:
        self._asked = now
        try:
            self._inquiry = Inquiry(self._cluster, range(self._cluster.n))
        except ClusterError:  # the cluster is being stopped
            self._inquiry = None

    def _take_answers(self, inquiry: Inquiry, now: float) -> None:
        """Take the answers when all have come that can: a rank that says nothing at all is looked at from outside."""
        late = inquiry.silent()
        mute = late & (self._activity.silent(now) | self._stopped | set(self._cluster.dead))
        if mute == late or now - self._asked >= ASK_S:
            answers = {rank: place for rank, place in inquiry.answers().items() if not self._is_between(place)}
            self._known, self._inquiry = answers | inquiry.from_outside(mute), None

    def _is_between(self, place: Whereabouts) -> bool:
        """Return whether a rank was asked before it began the cell, or just as it ended it."""
        return place.state == "idle" and self._activity.runs(place.rank)
