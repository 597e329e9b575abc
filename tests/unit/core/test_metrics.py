"""Counters and logged values of the training loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hvd_kernel.core import metrics
from hvd_kernel.protocol.messages import NotFinite


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()


def test_counts() -> None:
    metrics.step(32)
    metrics.step()
    assert metrics.snapshot() == metrics.MetricsSnapshot(2, 32)


def test_framework_may_count_its_own_steps() -> None:
    counted = [(3, 96)]
    metrics.count_by(lambda: counted[0])
    metrics.step(samples=16)
    assert metrics.snapshot() == metrics.MetricsSnapshot(4, 112)
    counted[0] = (5, 160)
    assert metrics.snapshot() == metrics.MetricsSnapshot(6, 176)


def test_log_accepts_numbers_tensors_and_arrays() -> None:
    import torch

    metrics.log(a=1, b=2.5, c=torch.tensor(3.0, requires_grad=True), d=np.float32(4), e=torch.tensor([5]), f=True)
    logged = metrics.pop_logged().latest
    assert logged == {"a": 1.0, "b": 2.5, "c": 3.0, "d": 4.0, "e": 5.0, "f": 1.0}
    assert all(type(value) is float for value in logged.values())
    metrics.log(a=7)
    assert metrics.pop_logged().latest["a"] == 7.0
    assert logged["a"] == 1.0, "a snapshot stays as it was"


@pytest.mark.parametrize("value", ["text", None, lambda torch: torch.ones(2), [1.0]])
def test_log_names_unsupported_values(value: object) -> None:
    value = value(pytest.importorskip("torch")) if callable(value) else value
    with pytest.raises(ValueError, match=r"log\(loss=\.\.\.\) takes a number or a tensor of one element"):
        metrics.log(loss=value)


def test_h3_names_are_capped_with_one_notice() -> None:
    names = {f"n{i}": i for i in range(100_000)}
    with pytest.warns(UserWarning, match="'n256' is not shown, nor are others: a cell has 256 names") as seen:
        metrics.log(**names)
    assert len(seen) == 1
    logged = metrics.pop_logged().latest
    assert logged == {f"n{i}": float(i) for i in range(256)}
    metrics.log(n255=7)
    assert metrics.pop_logged().latest["n255"] == 7.0, "names that are there are still taken"
    metrics.begin_cell()
    with pytest.warns(UserWarning, match="x{100}…' is not shown") as seen:
        metrics.log(**{"x" * 10_000_000: 1, "y" * 101: 2, "z" * 100: 3})
    assert len(seen) == 1
    assert metrics.pop_logged().latest == {"z" * 100: 3.0}


def test_every_logged_value_counts() -> None:
    """A sample carried the last value alone: one NaN, or one peak, among others was lost."""
    for value in (1.0, 1000.0, float("nan"), 0.5, 1.0):
        metrics.step()
        metrics.log(loss=value, rate=0.1)
    alarm = NotFinite(3, "nan", is_latest=False)
    assert metrics.pop_logged() == metrics.LoggedValues(
        {"loss": 1.0, "rate": 0.1}, {"loss": (0.5, 1000.0)}, {"loss": alarm}
    )
    assert metrics.pop_logged() == metrics.LoggedValues({"loss": 1.0, "rate": 0.1})
    for value in (2.0, float("inf"), float("nan")):
        metrics.log(loss=value, step=70)
    for _ in range(2):
        logged = metrics.pop_logged()
        assert logged.latest == {"rate": 0.1}
        assert logged.not_finite == {"loss": NotFinite(70, "nan", is_latest=True)}


def test_steps_of_values_count_from_the_cells_start() -> None:
    metrics.step(steps=100)
    metrics.begin_cell()
    metrics.step()
    metrics.log(loss=float("nan"))
    assert metrics.pop_logged().not_finite["loss"].step == 1


def test_samples_of_the_user_replace_the_automatic_count_in_a_cell() -> None:
    metrics.reset()
    metrics.step(samples=96)
    metrics.log(samples=8, loss=0.5)
    metrics.step(samples=96)
    metrics.log({"samples": 8})
    assert (metrics.snapshot().step, metrics.snapshot().samples) == (2, 16)
    assert metrics.pop_logged().latest == {"loss": 0.5}
    metrics.begin_cell()
    metrics.step(samples=96)
    assert metrics.snapshot().samples == 16 + 96
    with pytest.raises(ValueError, match=r"log\(samples="):
        metrics.log(samples="many")
