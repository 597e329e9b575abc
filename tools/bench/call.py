"""Cost of one blocking allreduce on one rank, 4 KiB: times, or code for callgrind to count.

    python -P tools/bench/call.py torch_ 100          the least of 200 means over 100 calls, in nanoseconds
    CG=1 valgrind --tool=callgrind --instr-atstart=no python -P tools/bench/call.py torch_ 1000

What is called: torch_ (in place), torch, torch_async (async and synchronize), numpy_, numpy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ELEMENTS = 1024
WARM, MEANS = 300, 200


def torch_calls() -> dict[str, Callable[[], Any]]:
    """The calls of torch's API."""
    import torch

    import hvd_kernel.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones(ELEMENTS)
    return {
        "torch_": lambda: hvd.allreduce_(tensor, name="x", op=hvd.Sum),
        "torch": lambda: hvd.allreduce(tensor, name="x", op=hvd.Sum),
        "torch_async": lambda: hvd.synchronize(hvd.allreduce_async_(tensor, name="x", op=hvd.Sum)),
    }


def numpy_calls() -> dict[str, Callable[[], Any]]:
    """The calls of NumPy's API."""
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    array = np.ones(ELEMENTS, np.float32)
    return {
        "numpy_": lambda: hvd.allreduce_(array, name="x", op=hvd.Sum),
        "numpy": lambda: hvd.allreduce(array, name="x", op=hvd.Sum),
    }


def repeat(call: Callable[[], Any], count: int) -> None:
    """Call so many times."""
    for _ in range(count):
        call()


def counted(call: Callable[[], Any], count: int) -> None:
    """Have callgrind count these calls alone."""
    for switch, calls in (("on", count), ("off", 0)):
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        repeat(call, calls)


def least(call: Callable[[], Any], count: int) -> float:
    """The least mean of a call, in nanoseconds."""
    means = []
    for _ in range(MEANS):
        begin = time.perf_counter_ns()
        repeat(call, count)
        means.append((time.perf_counter_ns() - begin) / count)
    return min(means)


def main() -> None:
    """Measure what the command line names."""
    what, count = sys.argv[1], int(sys.argv[2])
    calls = torch_calls() if what.startswith("torch") else numpy_calls()
    repeat(calls[what], WARM)
    if os.environ.get("CG"):
        counted(calls[what], count)
    else:
        sys.stdout.write(f"{what}: {least(calls[what], count):.0f} ns, the least of {MEANS} means over {count} calls\n")


if __name__ == "__main__":
    main()
