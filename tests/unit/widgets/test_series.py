"""Rates from counters, and curves that never grow: exact values, no clock but ours."""

from __future__ import annotations

import pytest

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.series import Counters, Grid, Rates, Track, mean


def sample(time: float, state: str = "compute", **counters: int) -> MetricsSample:
    return MetricsSample(rank=0, time=time, state=state, **counters)  # type: ignore[arg-type]


def test_rates_are_growth_over_the_last_second() -> None:
    track = Track()
    for i in range(11):  # 5 Hz for two seconds; the first second is twice as fast
        done = min(i, 5) * 40 + max(i - 5, 0) * 20
        track.add(sample(10 + i / 5, samples=done, bytes=done * 10**6, comm_ns=i * 50_000_000, wait_ns=i * 20_000_000))
    rates = track.rates()
    assert rates.samples_per_s == pytest.approx(100)
    assert rates.comm == pytest.approx(0.25)
    assert rates.wait == pytest.approx(0.10)
    assert rates.gbps == pytest.approx(100e6 / 250e6)
    assert track.overall().samples_per_s == pytest.approx(150)
    assert track.total == Counters(0, 300, 300 * 10**6, 500_000_000, 200_000_000, 0.0)


def test_one_sample_gives_no_rate_and_stale_ones_are_ignored() -> None:
    track = Track()
    assert track.rates() == track.overall() == Rates()
    track.add(sample(5, samples=100))
    assert track.rates() == track.overall() == Rates()
    track.add(sample(5, samples=900))
    track.add(sample(4, samples=900))
    assert track.total.samples == 0
    assert track.last is not None
    assert track.last.samples == 100


def test_reduced_counters_belong_to_a_new_engine() -> None:
    track = Track()
    for time, count in ((0, 500), (1, 600), (2, 30), (3, 80)):
        track.add(sample(time, samples=count))
    assert track.total.samples == 100 + 30 + 50


def test_speed_is_over_the_time_in_which_the_rank_trained() -> None:
    track = Track()
    for time, count in ((0, 0), (10, 0), (11, 64), (12, 128), (20, 128)):
        track.add(sample(time, samples=count))
    assert track.overall().samples_per_s == pytest.approx(64)


def test_all_rates_of_a_cell_are_over_its_training() -> None:
    """Start and imports made communication look small: 5 % of a cell was 50 % of the training."""
    track = Track()
    for time, steps, busy in ((0, 0, 0), (18, 0, 0), (19, 1, 5), (20, 2, 10), (21, 2, 10)):
        track.add(sample(time, step=steps, comm_ns=busy * 10**8, bytes=busy * 10**8))
    assert track.overall() == Rates(samples_per_s=0.0, comm=0.5, wait=0.0, gbps=1.0, cpu=0.0)


def test_unfinished_wait_is_counted_once() -> None:
    track = Track()
    track.add(sample(0, "collective", ops=7))
    track.add(sample(1, "collective", ops=7))
    track.add(sample(2, "collective", ops=7))
    assert track.total.wait_ns == 2_000_000_000
    assert track.rates().wait == pytest.approx(1)
    track.add(sample(3, ops=8, wait_ns=2_500_000_000))
    assert track.total.wait_ns == 2_500_000_000
    track.add(sample(4, ops=9, wait_ns=2_600_000_000))
    assert track.total.wait_ns == 2_600_000_000


def test_a_full_grid_merges_neighbours_and_doubles_its_width() -> None:
    grid = Grid(ranks=2, limit=4)
    for i in range(4):
        grid.add(i * 0.2, {"loss": [float(i), None]})
    assert (grid.merges, grid.width) == (0, 0.2)
    grid.add(0.8, {"loss": [9.0, 5.0]})
    assert (grid.merges, grid.width) == (1, 0.4)
    assert grid.t == [0.2, 0.6, 0.8]
    assert grid.curves == {"loss": [[0.5, None], [2.5, None], [9.0, 5.0]]}


def test_grid_is_always_bounded() -> None:
    grid, t = Grid(ranks=1, limit=60), 0.0
    for _ in range(20_000):
        t += 0.2
        if grid.due(t, late=False):
            grid.add(t, {"loss": [1.0]})
    assert len(grid.t) <= 60
    assert grid.t == sorted(grid.t)
    assert grid.t[-1] > 0.9 * t
    assert all(len(columns) == len(grid.t) for columns in grid.curves.values())


def test_late_curve_and_undrawable_values_have_gaps() -> None:
    grid = Grid(ranks=1)
    grid.add(0.0, {"a": [1.0]})
    grid.add(0.2, {"a": [float("nan")], "b": [float("inf")]})
    grid.add(0.4, {"b": [1.23456]})
    assert grid.curves == {"a": [[1.0], [None], [None]], "b": [[None], [None], [1.235]]}


def test_columns_wait_for_late_ranks_half_a_width() -> None:
    grid = Grid(ranks=2)
    assert not grid.due(0.1, late=True)
    assert grid.due(0.1, late=False)
    grid.add(1.0, {})
    assert not grid.due(1.1, late=False)
    assert grid.due(1.2, late=False)
    assert not grid.due(1.2, late=True)
    assert grid.due(1.31, late=True)


def test_mean_of_available_values() -> None:
    assert mean([1.0, None, 3.0]) == 2.0
    assert mean([None]) is None
    assert mean([]) is None


def test_peaks_survive_merges() -> None:
    """Averages hid them: 1000 among 400 values of 1 was drawn as a flat line."""
    grid, values = Grid(ranks=1, limit=4), [1.0, 1000.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    for i, value in enumerate(values):
        grid.add(i * 0.2, {"log:loss": [value]} | ({"low:loss": [0.5], "high:loss": [2.0]} if i == 2 else {}))
    assert grid.merges == 2
    assert (grid.curves["low:loss"][0], grid.curves["high:loss"][0]) == ([0.5], [1000.0])


def test_ranges_are_those_since_the_last_column() -> None:
    track = Track()
    for time, loss, ends in ((1, 2.0, (0.5, 7.0)), (2, 3.0, (1.0, 3.0))):
        track.add(MetricsSample(0, time, "compute", logged={"loss": loss, "rate": 1.0}, ranges={"loss": ends}))
    assert track.pop_ranges() == {"loss": (0.5, 7.0)}
    assert track.pop_ranges() == {}
