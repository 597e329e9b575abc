"""Telemetry of a rank: a thread samples its state five times a second, also while the main thread waits."""

from __future__ import annotations

import multiprocessing.process
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from hvd_kernel.core import main_thread, metrics, session, training_steps
from hvd_kernel.core.call_stack import CellOf
from hvd_kernel.frameworks.compression import CastCompressor
from hvd_kernel.processes import allocator
from hvd_kernel.protocol.messages import METRICS_TYPE, OPTIONS, MetricsSample, to_content
from hvd_kernel.worker import communication, gpu_figures
from hvd_kernel.worker.shell import stack_report

_PERIOD_S = 0.2
_IDLE_S = 30.0  # after a cell, until freed memory is returned to Linux
_data_workers = False
_PAGE = os.sysconf("SC_PAGESIZE")
_processor = main_thread.ProcessChecks()
Publish = Callable[[str, dict[str, Any], dict[str, Any]], None]


class Telemetry:
    """Sampling thread: it samples while a cell runs, and once more at its end. It lives as long as the rank."""

    def __init__(self, rank: int, publish: Publish, parked: Callable[[], bool], cell_of: CellOf) -> None:
        self.rank = rank
        self._parked = parked  # returns whether the main thread waits for the user
        self._cell_of = cell_of
        self._publish = publish
        self._parent: dict[str, Any] | None = None  # the running cell's request, None between cells
        self._keeps_memory = False  # what cells have freed, until no cell runs for a while
        self._changed = threading.Condition()
        threading.Thread(target=self._loop, name="hvd-telemetry", daemon=True).start()

    @contextmanager
    def during(self, parent: dict[str, Any]) -> Iterator[None]:
        """Sample until the block ends."""
        with self._changed:
            self._parent, self._keeps_memory = parent, True
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._parent = None
                self._changed.notify()
            self._publish(METRICS_TYPE, to_content(sample(self.rank, running=False)), parent)

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._keeps_memory)
                is_idle = not self._changed.wait_for(self._is_running, _IDLE_S)
                self._keeps_memory = not is_idle
                parent = self._parent
                ended = is_idle or self._changed.wait_for(partial(self._has_ended, parent), _PERIOD_S)
            if is_idle:
                allocator.trim()
            elif parent is not None and not ended:
                with suppress(Exception):  # if this one cannot be sent, a later one may
                    self._send(parent, sample(self.rank, running=True, parked=self._parked(), cell_of=self._cell_of))

    def _send(self, parent: dict[str, Any], current: MetricsSample) -> None:
        """Publish a sample unless the cell has ended since then: no sample may follow its last one."""
        with self._changed:
            if not self._has_ended(parent):
                self._publish(METRICS_TYPE, to_content(current), parent)

    def _is_running(self) -> bool:
        return self._parent is not None

    def _has_ended(self, parent: dict[str, Any] | None) -> bool:
        return self._parent is not parent


def sample(rank: int, *, running: bool, parked: bool = False, cell_of: CellOf = lambda _: None) -> MetricsSample:
    """Return a sample of this rank, which runs a cell or is parked at a prompt in one. Any thread.

    If its figures cannot be read, the sample has only the state: the last sample marks the end of a cell.
    """
    try:
        return _measured(rank, running=running, parked=parked, cell_of=cell_of)
    except Exception:  # noqa: BLE001 - from a framework's counter, or the system
        return MetricsSample(rank, time.monotonic(), "compute" if running else "idle")


def _measured(rank: int, *, running: bool, parked: bool, cell_of: CellOf) -> MetricsSample:
    training, logged = metrics.snapshot(), metrics.pop_logged()
    core = session.counters()
    scheduled = main_thread.scheduled_ns()
    waits_for = communication.main_thread_wait(cell_of).text if running and not parked else ""
    gpu = gpu_figures.sample()
    state = stack_report.state(waits_for, parked=parked) if running else "idle"
    is_idle = _processor.is_idle() and main_thread.is_idle()  # both are checks since the last sample
    return MetricsSample(
        rank=rank,
        time=time.monotonic(),
        state="waiting" if state == "compute" and is_idle and not gpu else state,
        waiting_for=waits_for,
        step=training.step,
        samples=training.samples,
        logged=logged.latest,
        ranges=logged.ranges,
        not_finite=logged.not_finite,
        bytes=core.get("bytes", 0),
        ops=core.get("ops", 0),
        comm_ns=core.get("busy_ns", 0),
        wait_ns=core.get("wait_ns", 0),
        cpu_s=time.process_time(),
        ran_ns=scheduled[0],
        queued_ns=scheduled[1],
        rss=resident(),
        gpu=gpu,
        options=tuple(_options()),
        optimizers=training_steps.reports(),
    )


def _options() -> list[str]:
    """Return the options that this rank has used so far; processes of a loader exist only during an epoch."""
    global _data_workers  # noqa: PLW0603 - of the process
    children: set[object] = getattr(multiprocessing.process, "_children", set())  # active_children() would reap them
    _data_workers = _data_workers or bool(children)
    return [name for name, used in zip(OPTIONS, (CastCompressor.used, _data_workers), strict=True) if used]


def resident() -> int:
    """Return the resident bytes of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - five times a second
            return int(file.read().split()[1]) * _PAGE
    except OSError:  # this process has no file descriptor left
        return 0
