"""Stragglers, from simulated telemetry: steps are exact, samples are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from hvd_kernel.diagnosis.stragglers import Slow, Stragglers
from hvd_kernel.protocol.messages import MetricsSample

PERIOD_S = 0.2
STEPS, HEALTHY = 10, 10_000
Owns = Callable[[int], Sequence[float]]
"""Step -> what each rank needs for it by itself, in seconds."""


def samples(owns: Owns, steps: int, *, stepping: bool = False) -> Iterator[MetricsSample]:
    """Simulate ranks that meet at the end of each step, sampled five times a second, each rank at its own moment."""
    ranks = len(owns(0))
    looks = [0.01 + PERIOD_S * rank / ranks for rank in range(ranks)]
    now, waits = 0.0, [0.0] * ranks
    for step in range(steps):
        own = owns(step)
        end = now + max(own)
        while min(looks) < end:
            rank = looks.index(min(looks))
            yield MetricsSample(
                rank, looks[rank], "compute", ops=step, step=step * stepping, wait_ns=round(waits[rank] * 1e9)
            )
            looks[rank] += PERIOD_S
        waits = [waited + end - now - mine for waited, mine in zip(waits, own, strict=True)]
        now = end


def steady(factors: Mapping[int, float], ranks: int, seconds: float = 0.5, noise: float = 0.02, seed: int = 1) -> Owns:
    """Return ranks with this step time in seconds, some of them a multiple, with noise."""
    chance = random.Random(seed)
    return lambda _step: [seconds * factors.get(r, 1.0) * math.exp(chance.gauss(0.0, noise)) for r in range(ranks)]


def found(owns: Owns, steps: int, *, stepping: bool = False) -> tuple[dict[int, Slow], int]:
    """Return the ranks with a badge at the end, and the step of the first badge."""
    stragglers, first = Stragglers(range(len(owns(0)))), steps
    for sample in samples(owns, steps, stepping=stepping):
        stragglers.feed(sample)
        if stragglers.slow:
            first = min(first, max(sample.ops, sample.step))
    return stragglers.slow, first


@pytest.mark.parametrize(
    ("slow", "ranks"), [({1: 1.2}, 2), ({2: 1.2}, 3), ({2: 1.2}, 4), ({1: 1.2, 2: 1.25}, 4), ({0: 1.2}, 8)]
)
@pytest.mark.parametrize("seconds", [0.25, 0.5, 3.0])
def test_a13_rank_slower_by_a_fifth_is_found_in_ten_steps(slow: dict[int, float], ranks: int, seconds: float) -> None:
    badges, first = found(steady(slow, ranks, seconds), 40)
    assert set(badges) == set(slow)
    assert first <= STEPS
    for rank, factor in slow.items():
        assert badges[rank].times == pytest.approx(factor, abs=0.06)
        assert badges[rank].share == pytest.approx(1 - 1 / max(slow.values()) - (max(slow.values()) - factor), abs=0.07)


def test_a13_slow_rank_of_short_steps_is_found_in_two_seconds() -> None:
    badges, first = found(steady({1: 1.2}, 4, 0.01), 400)
    assert set(badges) == {1}
    assert first * 0.01 <= 2.0


def test_a13_far_slower_rank_is_found_after_five_rounds() -> None:
    badges, first = found(steady({3: 8.0}, 4, 0.5, noise=0.0), 12)
    assert set(badges) == {3}
    assert first <= 6
    assert str(badges[3]) == "slow 8.0x, others wait 88 %"
    assert str(Slow(1000.0, 0.994)) == "slow >10x, others wait 99 %"


@pytest.mark.parametrize("ranks", [2, 4])
def test_a13_healthy_ranks_get_no_badge_in_ten_thousand_rounds(ranks: int) -> None:
    """Every step varies by a tenth, one in 50 lasts up to four times as long: 0.3 s steps, a round every one or two."""
    chance = random.Random(ranks)

    def own() -> float:
        return 0.3 * math.exp(chance.gauss(0.0, 0.1)) * (1 + 3 * chance.random() if chance.random() < 0.02 else 1)

    stragglers = Stragglers(range(ranks))
    for sample in samples(lambda _step: [own() for _ in range(ranks)], HEALTHY):
        stragglers.feed(sample)
        assert stragglers.slow == {}, f"a badge at step {sample.ops}"


def test_a13_badge_follows_the_rank_that_is_slow_now() -> None:
    before, after = steady({}, 4), steady({2: 1.3}, 4)
    stragglers, badges = Stragglers(range(4)), {}
    for sample in samples(lambda step: (before if step < 60 or step >= 120 else after)(step), 180):
        stragglers.feed(sample)
        badges[sample.ops] = set(stragglers.slow)
    assert [badges[step] for step in (59, 72, 119, 179)] == [set(), {2}, {2}, set()]


def test_a13_one_pause_of_seconds_is_no_slowness() -> None:
    healthy = steady({}, 4)
    badges, first = found(
        lambda step: [5.0 if (step, r) == (20, 1) else own for r, own in enumerate(healthy(step))], 60
    )
    assert (badges, first) == ({}, 60)


def test_optimizer_steps_are_preferred_if_counted() -> None:
    badges, first = found(steady({1: 1.3}, 2), 30, stepping=True)
    assert set(badges) == {1}
    assert first <= STEPS


def test_idle_ranks_and_other_process_sets_are_not_compared() -> None:
    """In the first run a rank needs 3 ms of a beat of 100, another one; in the second two ranks work twice as often."""
    busy = [
        MetricsSample(r, 0.2 * i, "compute", ops=2 * i, wait_ns=i * 10**6 * (194, 198)[r])
        for i in range(99)
        for r in (0, 1)
    ]
    apart = [
        MetricsSample(r, 0.2 * i, "compute", ops=i * (1 + r // 2), wait_ns=i * 10**8 * r)
        for i in range(99)
        for r in range(4)
    ]
    for run in (busy, apart):
        stragglers = Stragglers(range(4 if run is apart else 2))
        for sample in run:
            stragglers.feed(sample)
        assert stragglers.slow == {}


def test_a_rank_at_a_prompt_is_not_slow() -> None:
    stragglers = Stragglers(range(2))
    for i in range(200):
        for rank, state in enumerate(("compute", "prompt" if i % 2 else "compute")):
            stragglers.feed(MetricsSample(rank, 0.2 * i, state, ops=i, wait_ns=i * 10**8 * (rank == 0)))
    assert stragglers.slow == {}


def test_single_rank_and_unknown_ranks_get_no_badge() -> None:
    for ranks, speaking in (([3], [3]), ([0, 1], [5, 6])):
        stragglers = Stragglers(ranks)
        for i in range(100):
            for rank in speaking:
                stragglers.feed(MetricsSample(rank, 0.2 * i, "compute", ops=i))
        assert stragglers.slow == {}


def test_reset_counters_are_handled() -> None:
    """The communicator was reset: everything counts from zero, and another rank is slow."""
    stragglers = Stragglers(range(2))
    for start, slow in ((0.0, 1), (100.0, 0)):
        for one in samples(steady({slow: 1.5}, 2), 40):
            stragglers.feed(MetricsSample(one.rank, start + one.time, "compute", ops=one.ops, wait_ns=one.wait_ns))
        assert set(stragglers.slow) == {slow}


def test_rank_that_leaves_the_common_step_loses_its_badge() -> None:
    stragglers = Stragglers(range(2))
    for one in samples(steady({1: 1.5}, 2), 40):
        alone = 10 * max(0, one.ops - 20) * (one.rank == 0)  # operations of a set in which rank 1 is not
        stragglers.feed(MetricsSample(one.rank, one.time, "compute", ops=one.ops + alone, wait_ns=one.wait_ns))
        assert one.ops != 20 or set(stragglers.slow) == {1}
    assert stragglers.slow == {}
