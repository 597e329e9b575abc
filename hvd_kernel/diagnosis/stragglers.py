"""Stragglers: determines from the counters of samples which ranks keep all others waiting, and by how much. Pure.

All ranks wait in a collective for the slowest one, which does not wait there itself. A rank counts as slow if it was
slow in many rounds, not if it was very slow in one: on a busy machine every rank is late now and then.

Terms.
  beat       unit of common progress: optimizer steps if the ranks take any, else collectives
  round      the time in which every rank advanced by a beat or more, as seen in the samples
  own time   time of a beat in which a rank did not wait for other ranks
  pace       the median own time of all other ranks: half of all may be slow
  excess     logarithm of own time to pace, in one round
  score      sum of the excesses of many rounds, each reduced by a tolerance, never below zero (Page's test)
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hvd_kernel.formatting import units
from hvd_kernel.protocol.messages import MetricsSample

LEAST_SHARE = 0.1
"""Share of the other ranks' time spent waiting for a rank that earns it a badge; 70 % of this keeps the badge."""

LEAST_TIMES = 1.1

_SLACK = math.log(1.07)  # tolerance: an excess up to this counts as none
_MOST = 0.3  # bound of an excess, up or down, so that one long pause counts like one round
_ALARM = 0.5  # score of a slow rank; below half of it the badge ends, and the score is capped at 1.5 times it
_DOUBT = 14.0  # noise alone, if estimated correctly, raises a score to the alarm once in e**14 rounds
_QUIET = 0.05  # initial estimate of the noise of an excess
_PRIOR, _MEMORY = 4, 40  # weight of that estimate in rounds, and rounds over which noise is averaged
_SPAN = 5
_MEDIAN_OF_SQUARES = 0.455  # of normal deviates
_SHARED = 0.1  # share of a beat added to own times: if ranks hardly compute, their own times carry little information
_SHORTEST = 1e-3  # smallest divisor for the pace, in beats
_FEWEST, _LOOK_BACK = 5, 9  # rounds before a badge; rounds (and spans) whose median is shown (is the noise)
_PAIR = 2


class Slow(NamedTuple):
    """How slow a rank is, over the last rounds."""

    times: float  # its own time, as a multiple of the pace
    share: float  # of the other ranks' time spent waiting for it, 0..1

    def __str__(self) -> str:
        """Return ``slow 1.4x, others wait 23 %``."""
        return f"slow {units.multiple(self.times)}, others wait {units.percent(self.share)}"


class Stragglers:
    """Feed it every sample; ``slow`` holds the ranks that keep others waiting."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.slow: dict[int, Slow] = {}
        self._suspects = {rank: _Suspect() for rank in ranks}
        self._latest: dict[int, MetricsSample] = {}
        self._first: dict[int, int] = {}  # beats at the first mark
        self._mark: dict[int, MetricsSample] = {}  # at the beginning of the round
        self._late = set(self._suspects)  # ranks that have not advanced in this round
        self._stepping = False  # some rank takes optimizer steps in this cell

    def feed(self, sample: MetricsSample) -> None:
        """Record a sample of one of these ranks; ignore all others."""
        rank = sample.rank
        if rank not in self._suspects or len(self._suspects) < _PAIR:
            return
        before = self._latest.get(rank, sample)
        self._latest[rank] = sample
        stepping = self._stepping or sample.step > before.step
        if stepping != self._stepping or sample.state == "prompt" or _fell(before, sample):
            self._stepping = stepping
            self._begin_again()
        elif not self._mark or self._beats(sample) > self._beats(self._mark[rank]):
            self._late.discard(rank)
            if not self._late:
                self._end_round()

    def _beats(self, sample: MetricsSample) -> int:
        return sample.step if self._stepping else sample.ops

    def _begin_again(self) -> None:
        """Discard the round: the user was prompted, or the unit of progress has changed."""
        self._mark, self._first = {}, {}
        self._late = set(self._suspects)

    def _end_round(self) -> None:
        before, self._mark = self._mark, dict(self._latest)
        self._late = set(self._suspects)
        if not before:
            self._first = {rank: self._beats(sample) for rank, sample in self._mark.items()}
            return
        beats = {rank: self._beats(now) - self._beats(before[rank]) for rank, now in self._mark.items()}
        if not self._in_step(max(beats.values())):
            self.slow.clear()
            return
        seconds = sum(now.time - before[rank].time for rank, now in self._mark.items()) / sum(beats.values())
        waits = {r: 1e-9 * (now.wait_ns - before[r].wait_ns) / beats[r] for r, now in self._mark.items()}
        self._judge(seconds, waits)

    def _in_step(self, longest: int) -> bool:
        """Return whether ranks have made the same number of beats: ranks in different process sets are not compared."""
        made = [self._beats(sample) - self._first[rank] for rank, sample in self._mark.items()]
        return max(made) - min(made) <= longest + 1

    def _judge(self, seconds: float, waits: Mapping[int, float]) -> None:
        """Evaluate one round, from the duration of a beat and the time that each rank waited in it."""
        if seconds <= 0:
            return
        order = sorted(waits, key=lambda rank: -waits[rank])
        own_times = [max(0.0, 1 - waits[rank] / seconds) for rank in order]  # ascending, in beats
        for place, rank in enumerate(order):
            suspect = self._suspects[rank]
            suspect.add_round(own_times[place], _median_without(own_times, place))
            verdict = suspect.verdict(shown=rank in self.slow)
            if verdict is None:
                self.slow.pop(rank, None)
            else:
                self.slow[rank] = verdict


class _Suspect:
    """The evidence against one rank."""

    def __init__(self) -> None:
        self._score = 0.0
        self._alarmed = False
        self._noise = _Noise()
        self._rounds: deque[Slow] = deque(maxlen=_LOOK_BACK)

    def add_round(self, own_time: float, pace: float) -> None:
        """Add a round; times are fractions of a beat."""
        self._rounds.append(Slow(own_time / max(pace, _SHORTEST), max(0.0, own_time - pace)))
        excess = max(-_MOST, min(_MOST, math.log((own_time + _SHARED) / (pace + _SHARED))))
        self._noise.learn(excess)
        alarm = max(_ALARM, _DOUBT * self._noise.variance() / (2 * _SLACK))
        self._score = max(0.0, min(1.5 * alarm, self._score + excess - _SLACK))
        self._alarmed = self._score >= (0.5 * alarm if self._alarmed else alarm)

    def verdict(self, *, shown: bool) -> Slow | None:
        """Return the figures of the badge; None if the rank gets none."""
        if not self._alarmed or len(self._rounds) < _FEWEST:
            return None
        usual = Slow(*(statistics.median(column) for column in zip(*self._rounds, strict=True)))
        least = LEAST_SHARE * (0.7 if shown else 1.0)
        return usual if usual.share >= least and usual.times >= LEAST_TIMES else None


class _Noise:
    """Estimates the random variance of excesses from differences of neighbours, which lasting slowness cancels in.

    Neighbours are rounds, and spans of five rounds, because a disturbance lasts for a while. Of the spans the median
    counts, so that the span in which a rank becomes slow does not hide it.
    """

    def __init__(self) -> None:
        self._rounds = _QUIET**2
        self._spans = deque([_QUIET**2 * _MEDIAN_OF_SQUARES], maxlen=_LOOK_BACK)
        self._count = 0
        self._last = self._last_span = self._sum = 0.0

    def learn(self, excess: float) -> None:
        """Add the excess of a round."""
        if self._count:
            self._rounds += ((excess - self._last) ** 2 / 2 - self._rounds) / min(self._count + _PRIOR, _MEMORY)
        self._last = excess
        self._sum += excess
        self._count += 1
        if self._count % _SPAN == 0:
            self._learn_span(self._sum / _SPAN)
            self._sum = 0.0

    def variance(self) -> float:
        """Return the estimated variance of an excess; it is larger while there are few rounds."""
        doubt = 1 + 1 / math.sqrt(self._count)
        return doubt * max(self._rounds, statistics.median(self._spans) / _MEDIAN_OF_SQUARES)

    def _learn_span(self, mean: float) -> None:
        if self._count > _SPAN:
            self._spans.append((mean - self._last_span) ** 2 / 2 * _SPAN)
        self._last_span = mean


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Return the median of all values but one."""
    rest = len(ordered) - 1
    low, high = ((at + (at >= place)) for at in ((rest - 1) // 2, rest // 2))
    return (ordered[low] + ordered[high]) / 2


def _fell(before: MetricsSample, after: MetricsSample) -> bool:
    """Return whether a counter fell, because the communicator was reset."""
    return after.ops < before.ops or after.wait_ns < before.wait_ns or after.step < before.step
