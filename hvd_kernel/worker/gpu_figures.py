"""Figures of this rank's GPU from NVML. They describe the whole device, also if several ranks share it.

There are none without a GPU, before the rank has used it (querying it would start CUDA), or if nvidia-ml-py (extra
``gpu``) is not installed. A single figure that a device does not support is left out.

Terms.
  figure   name -> number: util (%), memory (bytes), power (W), temperature (Celsius), and bytes per second: nvlink_tx,
           nvlink_rx, pcie_tx, pcie_rx
  counter  bytes since the start of the driver; a rate is its increase
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.errors import NotInitialized
from hvd_kernel.frameworks import registry

Figures = dict[str, float]

_KILO = 1000.0
_KIBI = 1024.0
_ALL_LINKS = 0xFFFFFFFF
_PCIE_POLL_S = 1.0  # a query of PCIe blocks: NVML measures each direction for 20 ms


def sample() -> Figures:
    """Return the current figures. One thread."""
    meter = _meter_of(_uuid())
    return {} if meter is None else meter.read(time.monotonic())


class Meter:
    """NVML queries of one device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._queries: list[Callable[[float], Figures]] = [self._load, self._memory, self._power, self._temperature]
        self._queries += [self._nvlink, self._pcie]
        self._counted: tuple[float, Sequence[int]] | None = None  # time and values of the last NVLink counters
        self._pcie_at = float("-inf")
        self._pcie_was: Figures = {}

    def read(self, now: float) -> Figures:
        """Return the figures of the device; ``now`` is monotonic time in seconds."""
        figures: Figures = {}
        for query in self._queries:
            try:
                figures |= query(now)
            except (self._nvml.NVMLError, AttributeError):  # not supported by this device, driver or binding
                continue
        return figures

    def _load(self, _now: float) -> Figures:
        return {"util": float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)}

    def _memory(self, _now: float) -> Figures:
        return {"memory": float(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)}

    def _power(self, _now: float) -> Figures:
        return {"power": self._nvml.nvmlDeviceGetPowerUsage(self._handle) / _KILO}

    def _temperature(self, _now: float) -> Figures:
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return {"temperature": float(self._nvml.nvmlDeviceGetTemperature(self._handle, sensor))}

    def _nvlink(self, now: float) -> Figures:
        nvml = self._nvml
        fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
        values = nvml.nvmlDeviceGetFieldValues(self._handle, [(field, _ALL_LINKS) for field in fields])
        if any(value.nvmlReturn != nvml.NVML_SUCCESS for value in values):
            return {}
        counts = [int(value.value.ullVal) for value in values]
        before, self._counted = self._counted, (now, counts)
        if before is None or now <= before[0] or any(new < old for new, old in zip(counts, before[1], strict=True)):
            return {}
        sent, received = ((new - old) * _KIBI / (now - before[0]) for new, old in zip(counts, before[1], strict=True))
        return {"nvlink_tx": sent, "nvlink_rx": received}

    def _pcie(self, now: float) -> Figures:
        if now - self._pcie_at >= _PCIE_POLL_S:
            nvml, self._pcie_at, self._pcie_was = self._nvml, now, {}
            for name, counter in (("pcie_tx", nvml.NVML_PCIE_UTIL_TX_BYTES), ("pcie_rx", nvml.NVML_PCIE_UTIL_RX_BYTES)):
                self._pcie_was[name] = nvml.nvmlDeviceGetPcieThroughput(self._handle, counter) * _KILO
        return self._pcie_was


def _uuid() -> str | None:
    """Return the UUID of this rank's device for NVML, whose device numbers may differ from CUDA's."""
    try:
        local_rank = session.local_rank()
    except NotInitialized:
        local_rank = 0
    uuids = (adapter.device_uuid(local_rank) for adapter in registry.in_use())
    return next((uuid for uuid in uuids if uuid is not None), None)


@cache
def _meter_of(uuid: str | None) -> Meter | None:
    """Return the meter of a device; None if no framework has used one."""
    if uuid is None:
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return Meter(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except Exception:  # noqa: BLE001 - a driver without NVML, an old library: no figures, but the cell must run
        return None
