"""A rank's samples, with the moment at which the cell ends chosen by the test."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from hvd_kernel.frameworks.compression import CastCompressor, FP16Compressor
from hvd_kernel.protocol.messages import COMPRESSION, DATA_WORKERS, MetricsSample
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


def test_a_rank_tells_which_options_it_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CastCompressor, "used", False)
    monkeypatch.setattr(telemetry, "_data_workers", False)
    assert telemetry.sample(0, running=True).options == ()
    FP16Compressor.compress(np.ones(3, np.int32))
    assert telemetry.sample(0, running=True).options == (), "integers travel as they are"
    FP16Compressor.compress(np.ones(3, np.float32))
    assert telemetry.sample(0, running=True).options == (COMPRESSION,)
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    assert telemetry.sample(0, running=True).options == (COMPRESSION, DATA_WORKERS)
    child.join()
    assert telemetry.sample(0, running=True).options == (COMPRESSION, DATA_WORKERS), "they come and go"
