"""A rank's samples, with the moment at which the cell ends chosen by the test."""

from __future__ import annotations

import errno
import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from hvd_kernel.core.metrics import MetricsSnapshot
from hvd_kernel.errors import NotInitialized
from hvd_kernel.frameworks.compression import CastCompressor, FP16Compressor
from hvd_kernel.processes import allocator
from hvd_kernel.protocol.messages import COMPRESSION, DATA_WORKERS, MetricsSample
from hvd_kernel.worker import job_telemetry, telemetry

PATIENCE_S = 60.0


def test_no_sample_follows_the_last_one_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample in progress at the end of the cell is late: readers treat the last one as the end."""
    taking, ended, next_one = threading.Event(), threading.Event(), threading.Event()
    said: list[tuple[int, str]] = []

    def sample(rank: int, *, running: bool, **_how: object) -> MetricsSample:
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
    samples = telemetry.Telemetry(0, publish, lambda: False, lambda _file: None)
    with samples.during({"cell": 1}):
        assert taking.wait(PATIENCE_S)
    ended.set()
    with samples.during({"cell": 2}):
        assert next_one.wait(PATIENCE_S)  # by now the thread has done with the first cell
    assert [state for cell, state in said if cell == 1] == ["idle"]
    assert said[-1] == (2, "idle")


def test_idle_rank_returns_its_freed_memory_once_after_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    trims = threading.Semaphore(0)
    monkeypatch.setattr(telemetry, "_IDLE_S", 0.001)
    monkeypatch.setattr(allocator, "trim", trims.release)
    samples = telemetry.Telemetry(0, lambda *_: None, lambda: False, lambda _file: None)
    for cell in range(2):
        with samples.during({"cell": cell}):
            assert not trims.acquire(blocking=False)
        assert trims.acquire(timeout=PATIENCE_S)


def test_rank_reports_the_options_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
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


class Met:
    """A session of a process with this rank; None: it has not been initialised."""

    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks

    def rank(self) -> int:
        if not self.ranks:
            raise NotInitialized
        return self.ranks[0]


@pytest.mark.parametrize(("given", "ranks", "expected"), [("3", (), {3}), (None, (1,), {1}), ("3", (1,), {1})])
def test_rank_of_a_job_reports_until_the_end(
    given: str | None, ranks: tuple[int, ...], expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_telemetry, "session", Met(*ranks))
    monkeypatch.setattr(job_telemetry, "_PERIOD_S", 0.001)
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    if given is not None:
        monkeypatch.setenv("HOROVOD_RANK", given)
    told, has_told = list[MetricsSample](), threading.Event()

    def tell(sample: MetricsSample) -> None:
        told.append(sample)
        has_told.set()

    with job_telemetry.SampleReporter(tell):
        assert has_told.wait(PATIENCE_S)
    assert {sample.rank for sample in told} == expected
    assert [sample.state == "idle" for sample in told] == [False] * (len(told) - 1) + [True]


def test_process_without_a_rank_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_telemetry, "session", Met())
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    told: list[MetricsSample] = []
    with job_telemetry.SampleReporter(told.append):
        pass
    assert told == []


def test_sample_without_figures_shows_the_rank_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one ends a cell: the notebook would wait for it."""

    def broken() -> MetricsSnapshot:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(telemetry.metrics, "snapshot", broken)
    assert [telemetry.sample(3, running=running).state for running in (True, False)] == ["compute", "idle"]
    assert telemetry.sample(3, running=False).rank == 3


def test_a_rank_that_sleeps_is_not_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    def state(*, process: bool, main: bool, gpu: dict[str, float]) -> str:
        monkeypatch.setattr(telemetry._processor, "is_idle", lambda: process)
        monkeypatch.setattr(telemetry.main_thread, "is_idle", lambda: main)
        monkeypatch.setattr(telemetry.gpu_figures, "sample", lambda: gpu)
        return telemetry.sample(0, running=True).state

    assert state(process=True, main=True, gpu={}) == "waiting"
    assert state(process=False, main=True, gpu={}) == "compute", "on threads of a framework"
    assert state(process=True, main=False, gpu={}) == "compute", "it is ready, but its core is shared"
    assert state(process=True, main=True, gpu={"util": 90.0}) == "compute", "a device may compute"
