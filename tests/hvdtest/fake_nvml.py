"""A fake of nvidia-ml-py's module ``pynvml``: two devices whose figures a test sets. No driver is used.

It is the API that the real one has in version 13; a figure of None raises, as one that a device does not have does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

FIELDS = {138: "nvlink_tx_kib", 139: "nvlink_rx_kib"}
LINKS = 0xFFFFFFFF


class NVMLError(Exception):
    """As NVML raises it."""


@dataclass
class FakeDevice:
    """In NVML's units."""

    util: int | None = 71
    used: int | None = 2 * 10**9
    milliwatts: int | None = 412_500
    celsius: int | None = 68
    nvlink_tx_kib: int | None = 0
    nvlink_rx_kib: int | None = 0
    pcie_kb: tuple[int, int] | None = (1_200_000, 3_400_000)  # sent, received
    asked: list[str] = field(default_factory=list)


def fake_nvml(devices: dict[str, FakeDevice]) -> ModuleType:
    """Return the module; devices by their UUID."""
    module = ModuleType("pynvml")
    nvml: Any = module

    def figure(name: str) -> Any:
        def ask(handle: FakeDevice, *_: Any) -> Any:
            handle.asked.append(name)
            value = getattr(handle, name)
            if value is None:
                raise NVMLError("Not Supported")
            return value

        return ask

    def by_uuid(uuid: str) -> FakeDevice:
        if uuid not in devices:
            raise NVMLError("Not Found")
        return devices[uuid]

    def field_values(handle: FakeDevice, asked: list[tuple[int, int]]) -> list[Any]:
        assert all(scope == LINKS for _, scope in asked)
        values = [getattr(handle, FIELDS[number]) for number, _ in asked]
        return [
            SimpleNamespace(nvmlReturn=0 if value is not None else 3, value=SimpleNamespace(ullVal=value or 0))
            for value in values
        ]

    nvml.NVMLError, nvml.NVML_SUCCESS, nvml.NVML_TEMPERATURE_GPU = NVMLError, 0, 0
    nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES = 0, 1
    nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = FIELDS
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = by_uuid
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=figure("util")(handle))
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=figure("used")(handle))
    nvml.nvmlDeviceGetPowerUsage = figure("milliwatts")
    nvml.nvmlDeviceGetTemperature = figure("celsius")
    nvml.nvmlDeviceGetPcieThroughput = lambda handle, direction: figure("pcie_kb")(handle)[direction]
    nvml.nvmlDeviceGetFieldValues = field_values
    return module
