"""Stragglers: which ranks keep the others waiting, and by how much: found in the counters of their samples. Pure.

All ranks come to a collective, and who is slow is the one that does not wait there. A rank is called slow when it was
so in many rounds, not when it was very slow in one: on a busy machine every rank is late now and then.

Terms.
  beat       what ranks do in step: optimizer steps where they take some, else collectives
  round      the time in which every rank went on by a beat or more, as samples show it
  own time   what a rank needs for a beat by itself: the time in which it did not wait for others
  pace       the median own time of the other ranks: half of all may be slow
  excess     logarithm of own time to pace, in one round
  score      excesses of many rounds added up, less what is not worth a word, never below zero (Page's test)
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
"""Of the others' time that must go in waiting for a rank, for a badge; seven tenths of it for keeping the badge."""

LEAST_TIMES = 1.1

_SLACK = math.log(1.07)  # an excess that counts as none
_MOST = 0.3  # an excess that counts, up or down: one pause of a second is one round
_ALARM = 0.5  # score of a slow rank; half of it ends the badge, and it grows to 1.5 of it
_DOUBT = 14.0  # by noise alone, if it is as estimated, a score reaches the alarm once in e**14 rounds
_QUIET = 0.05  # noise of an excess, as long as little is known
_PRIOR, _MEMORY = 4, 40  # rounds that this guess counts for, rounds of which noise is a mean
_SPAN = 5
_MEDIAN_OF_SQUARES = 0.455  # of normal deviates
_SHARED = 0.1  # of a beat is everybody's: where ranks hardly compute, their own times say little
_SHORTEST = 1e-3  # pace that is divided by, in beats
_FEWEST, _LOOK_BACK = 5, 9  # rounds before a badge, rounds whose median is shown, spans whose median is noise
_PAIR = 2


class Slow(NamedTuple):
    """How slow a rank is, over the last rounds."""

    times: float  # its own time, as a multiple of the pace
    share: float  # of the others' time that goes in waiting for it, 0..1

    def __str__(self) -> str:
        """Write ``slow 1.4x, others wait 23 %``."""
        return f"slow {units.multiple(self.times)}, others wait {units.percent(self.share)}"


class Stragglers:
    """Feed it every sample; ``slow`` holds the ranks that keep others waiting."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.slow: dict[int, Slow] = {}
        self._suspects = {rank: _Suspect() for rank in ranks}
        self._latest: dict[int, MetricsSample] = {}
        self._first: dict[int, int] = {}  # beats at the first mark
        self._mark: dict[int, MetricsSample] = {}  # at the beginning of the round
        self._late = set(self._suspects)  # they have not gone on in this round
        self._stepping = False  # some rank takes optimizer steps in this cell

    def feed(self, sample: MetricsSample) -> None:
        """Take a sample; others than of these ranks are ignored."""
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
        """Forget the round: the user was asked, or what counts is not the same any more."""
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
        """Whether ranks have made the same number of beats: those that work in sets of their own are not compared."""
        made = [self._beats(sample) - self._first[rank] for rank, sample in self._mark.items()]
        return max(made) - min(made) <= longest + 1

    def _judge(self, seconds: float, waits: Mapping[int, float]) -> None:
        """Take one round: what a beat took, and how long each rank waited in it."""
        if seconds <= 0:
            return
        order = sorted(waits, key=lambda rank: -waits[rank])
        own = [max(0.0, 1 - waits[rank] / seconds) for rank in order]  # ascending, in beats
        for place, rank in enumerate(order):
            suspect = self._suspects[rank]
            suspect.take(own[place], _median_without(own, place))
            found = suspect.verdict(shown=rank in self.slow)
            if found is None:
                self.slow.pop(rank, None)
            else:
                self.slow[rank] = found


class _Suspect:
    """What speaks against one rank."""

    def __init__(self) -> None:
        self._score = 0.0
        self._alarmed = False
        self._noise = _Noise()
        self._rounds: deque[Slow] = deque(maxlen=_LOOK_BACK)

    def take(self, own: float, pace: float) -> None:
        """Add a round; times are parts of a beat."""
        self._rounds.append(Slow(own / max(pace, _SHORTEST), max(0.0, own - pace)))
        excess = max(-_MOST, min(_MOST, math.log((own + _SHARED) / (pace + _SHARED))))
        self._noise.learn(excess)
        alarm = max(_ALARM, _DOUBT * self._noise.variance() / (2 * _SLACK))
        self._score = max(0.0, min(1.5 * alarm, self._score + excess - _SLACK))
        self._alarmed = self._score >= (0.5 * alarm if self._alarmed else alarm)

    def verdict(self, *, shown: bool) -> Slow | None:
        """Return the figures of the badge, None where there is none."""
        if not self._alarmed or len(self._rounds) < _FEWEST:
            return None
        usual = Slow(*(statistics.median(column) for column in zip(*self._rounds, strict=True)))
        least = LEAST_SHARE * (0.7 if shown else 1.0)
        return usual if usual.share >= least and usual.times >= LEAST_TIMES else None


class _Noise:
    """How much excesses vary by chance: from differences of neighbours, since slowness that lasts is no chance.

    Neighbours are rounds, and spans of five: what makes a rank late makes it late for a while. Of the spans the median
    counts, so that the one in which a rank gets slow does not hide that it did.
    """

    def __init__(self) -> None:
        self._rounds = _QUIET**2
        self._spans = deque([_QUIET**2 * _MEDIAN_OF_SQUARES], maxlen=_LOOK_BACK)
        self._count = 0
        self._last = self._last_span = self._sum = 0.0

    def learn(self, excess: float) -> None:
        """Take a round."""
        if self._count:
            self._rounds += ((excess - self._last) ** 2 / 2 - self._rounds) / min(self._count + _PRIOR, _MEMORY)
        self._last = excess
        self._sum += excess
        self._count += 1
        if self._count % _SPAN == 0:
            self._learn_span(self._sum / _SPAN)
            self._sum = 0.0

    def variance(self) -> float:
        """Return the variance of an excess, the larger the less is known."""
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
    """Whether a counter began again: the communicator was reset."""
    return after.ops < before.ops or after.wait_ns < before.wait_ns or after.step < before.step
