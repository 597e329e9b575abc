"""The load of this rank's GPU. Empty where there is none, or where nvidia-ml-py is not installed (extra ``gpu``)."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any


def sample() -> dict[str, float]:
    """Return utilisation in % and memory in bytes of the device that this rank uses."""
    found = _device()
    if found is None:
        return {}
    nvml, handle = found
    try:
        load, memory = nvml.nvmlDeviceGetUtilizationRates(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return {}
    return {"util": float(load.gpu), "memory": float(memory.used)}


@cache
def _device() -> tuple[Any, Any] | None:
    """Return NVML's handle of torch's current device, found by UUID because CUDA may number GPUs otherwise."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        return nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # noqa: BLE001 - a driver without NVML, an old library: no figures, but the cell must go on
        return None
