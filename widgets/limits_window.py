"""Figures of the last seconds, from which the panel derives what limits a run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from hvd_kernel.diagnosis.limits_of_run import Bottleneck, Figures, Possible, bottleneck
from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.protocol.messages import MetricsSample

SPAN_S = 10
"""Window of the figures while the cell runs."""

SOONEST_S = 3.0
"""Shortest window with a verdict while the cell runs: the first seconds are setup."""

SHORTEST_S = 0.5
NS = 1e-9


class LimitsWindow:
    """Samples of the ranks; ``bottleneck`` is derived from the last seconds, or from the whole cell."""

    def __init__(self, possible: Possible = lambda _bytes: None, cores: int = 0) -> None:
        self._possible = possible
        self._cores = cores
        self._recent: dict[int, deque[MetricsSample]] = {}
        self._first: dict[int, MetricsSample] = {}
        self._last: dict[int, MetricsSample] = {}

    def feed(self, sample: MetricsSample) -> None:
        """Add a sample; after a reset of the communicator, or of the rank, counting starts again."""
        last = self._last.get(sample.rank)
        if last is None or sample.ops < last.ops or sample.wait_ns < last.wait_ns or sample.ran_ns < last.ran_ns:
            self._first[sample.rank] = sample
            self._recent[sample.rank] = deque([sample], maxlen=SPAN_S + 1)
        self._last[sample.rank] = sample
        recent = self._recent[sample.rank]
        if sample.time - recent[-1].time >= 1.0:
            recent.append(sample)

    def bottleneck(self, ranks: Iterable[int], slow: Mapping[int, Slow], *, over: bool) -> Bottleneck:
        """Return what limits the run; ``over``: the whole run instead of its last seconds."""
        since = self._first if over else {rank: recent[0] for rank, recent in self._recent.items()}
        present = [rank for rank in ranks if rank in self._last]
        spans = [self._last[rank].time - since[rank].time for rank in present]
        if not spans or min(spans) < (SHORTEST_S if over else SOONEST_S):
            return Bottleneck()
        figures = {rank: _growth(since[rank], self._last[rank]) for rank in present}
        return bottleneck(figures, slow, self._possible, self._cores)


def _growth(before: MetricsSample, after: MetricsSample) -> Figures:
    has_times = after.ran_ns > 0  # 0 if the system does not report processor times
    return Figures(
        after.time - before.time,
        (after.wait_ns - before.wait_ns) * NS,
        (after.comm_ns - before.comm_ns) * NS,
        after.bytes - before.bytes,
        after.ops - before.ops,
        (after.ran_ns - before.ran_ns) * NS if has_times else None,
        (after.queued_ns - before.queued_ns) * NS if has_times else None,
        after.options,
    )
