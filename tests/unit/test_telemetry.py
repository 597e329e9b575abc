"""A rank's samples, with the moment at which the cell ends chosen by the test."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.worker import telemetry

PATIENCE_S = 60.0


def test_nothing_of_a_cell_comes_after_its_last_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is being taken while the cell ends is late: whoever reads takes the last one for the end."""
    taking, ended, next_one = threading.Event(), threading.Event(), threading.Event()
    said: list[tuple[int, str]] = []

    def sample(rank: int, *, running: bool, parked: bool = False) -> MetricsSample:
        if running:
            taking.set()
            assert ended.wait(PATIENCE_S)
        return MetricsSample(rank, 0.0, "compute" if running else "idle")

    def publish(_kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        said.append((parent["cell"], content["state"]))
        if said[-1] == (2, "compute"):
            next_one.set()

    monkeypatch.setattr(telemetry, "sample", sample)
    monkeypatch.setattr(telemetry, "_PERIOD_S", 0.001)
    samples = telemetry.Telemetry(0, publish, lambda: False)
    with samples.during({"cell": 1}):
        assert taking.wait(PATIENCE_S)
    ended.set()
    with samples.during({"cell": 2}):
        assert next_one.wait(PATIENCE_S)  # by now the thread has done with the first cell
    assert [state for cell, state in said if cell == 1] == ["idle"]
    assert said[-1] == (2, "idle")
