"""Cost of one allreduce of 4 KiB: times, or instructions that callgrind counts.

    python -P tools/bench/calls/call.py torch_ 100          the least of 200 means over 100 calls, in nanoseconds
    python -P tools/bench/calls/call.py torch_,torch_async 100    in turn, and how many times the first one's time
    CG=1 valgrind --tool=callgrind --instr-atstart=no python -P tools/bench/calls/call.py torch_ 1000

What is called: torch_ (in place), torch, torch_async (in place, and synchronize), numpy_, numpy. With several ranks:
under hvdrun; rank 0 tells.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ELEMENTS = 1024
WARM, MEANS = 300, 200


def torch_calls() -> dict[str, Callable[[], Any]]:
    """Return the calls of torch's API by name."""
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
    """Return the calls of NumPy's API by name."""
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    array = np.ones(ELEMENTS, np.float32)
    return {
        "numpy_": lambda: hvd.allreduce_(array, name="x", op=hvd.Sum),
        "numpy": lambda: hvd.allreduce(array, name="x", op=hvd.Sum),
    }


def repeat(call: Callable[[], Any], count: int) -> None:
    """Call a number of times."""
    for _ in range(count):
        call()


def counted(call: Callable[[], Any], count: int) -> None:
    """Run these calls under callgrind's counting."""
    for switch, calls in (("on", count), ("off", 0)):
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        repeat(call, calls)


def means_in_turn(calls: list[Callable[[], Any]], count: int) -> list[list[float]]:
    """Return the means of each call in nanoseconds, measured in turn, so that other load affects all alike."""
    means: list[list[float]] = [[] for _ in calls]
    for _ in range(MEANS):
        for call, its in zip(calls, means, strict=True):
            begin = time.perf_counter_ns()
            repeat(call, count)
            its.append((time.perf_counter_ns() - begin) / count)
    return means


def print_means(names: list[str], means: list[list[float]], count: int) -> None:
    """Print the least mean of each, and the median of its means by the first one's."""
    for name, its in zip(names, means, strict=True):
        times = statistics.median(mean / first for mean, first in zip(its, means[0], strict=True))
        of = f", {times:.2f} times {names[0]} (median)" if name != names[0] else ""
        sys.stdout.write(f"{name}: {min(its):.0f} ns, the least of {MEANS} means over {count} calls{of}\n")


def main() -> None:
    """Measure what the command line names."""
    names, count = sys.argv[1].split(","), int(sys.argv[2])
    available = torch_calls() if names[0].startswith("torch") else numpy_calls()
    calls = [available[name] for name in names]
    for call in calls:
        repeat(call, WARM)
    if os.environ.get("CG"):
        counted(calls[0], count)
        return
    means = means_in_turn(calls, count)
    if os.environ.get("HOROVOD_RANK", "0") == "0":
        print_means(names, means, count)


if __name__ == "__main__":
    main()
