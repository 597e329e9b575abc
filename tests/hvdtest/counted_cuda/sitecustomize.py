"""torch as on a host with one GPU, where each call that would begin with CUDA is noted: its stack, in COUNTED_CUDA's file.

NVML says how many devices there are; what asks the driver (cuInit) or makes a context is told. Found through PYTHONPATH.
"""

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


def _noted(name: str, result: Any) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        with Path(os.environ["COUNTED_CUDA"]).open("a") as file:
            file.write(f"{name} in {' '.join(sys.argv)}\n{''.join(traceback.format_stack()[:-1])}\n")
        return result

    return call


def _patched(module: Any) -> None:
    module._C._cuda_getDeviceCount = _noted("cudaGetDeviceCount", 1)
    module._C._cuda_getCurrentRawStream = _noted("the current stream", 0)
    module._C._cuda_init = _noted("cuInit and a context", None)
    module._C._cuda_isInBadFork = lambda: False
    module.cuda._device_count_nvml = lambda: 1


def _exec_module(self: SourceFileLoader, module: ModuleType, run: Any = SourceFileLoader.exec_module) -> None:
    run(self, module)
    if module.__name__ == "torch":
        _patched(module)


SourceFileLoader.exec_module = _exec_module  # type: ignore[method-assign,assignment]  # not a finder: the prefetch of torch has its own
runpy.run_path(str(Path(__file__).parents[1] / "inside" / "sitecustomize.py"))
