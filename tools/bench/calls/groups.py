"""A grouped allreduce beside the same tensors one by one, in place, in turn: medians, and of their ratios.

    hvdrun -np 2 python -P tools/bench/calls/groups.py 40        40 rounds; rank 0 tells

Groups of 1 to 64 tensors of 4 KiB, and ResNet-50's 161 gradients (102 MB), last first. One by one: each a blocking
call, or all begun and then waited for; the better of the two in each round is what the group is compared with.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import hvd_kernel.torch as hvd

WARM = 3
BLOCKS = ((64, 256, 3), (128, 512, 4), (256, 1024, 6), (512, 2048, 3))  # width, output, how many


def resnet50_counts() -> list[int]:
    """Return the number of elements of each parameter of ResNet-50, in order."""
    counts = [64 * 3 * 49, 64, 64]
    before = 64
    for width, output, blocks in BLOCKS:
        for block in range(blocks):
            counts += [before * width, width, width, width * width * 9, width, width, width * output, output, output]
            counts += [before * output, output, output] if block == 0 else []
            before = output
    return [*counts, 2048 * 1000, 1000]


def variants(tensors: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Return the three variants of reducing these tensors."""
    names = [f"one.{i}" for i in range(len(tensors))]

    def blocking() -> None:
        for tensor, name in zip(tensors, names, strict=True):
            hvd.allreduce_(tensor, name=name, op=hvd.Max)

    def begun() -> None:
        pairs = zip(tensors, names, strict=True)
        for handle in [hvd.allreduce_async_(tensor, name=name, op=hvd.Max) for tensor, name in pairs]:
            hvd.synchronize(handle)

    return {
        "blocking": blocking,
        "begun": begun,
        "grouped": lambda: hvd.grouped_allreduce_(tensors, name="group", op=hvd.Max),
    }


def measured(body: Callable[[], object], repeats: int) -> float:
    """Return the microseconds of one call when all ranks begin together."""
    hvd.barrier()
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        body()
    return (time.perf_counter_ns() - begin) / repeats / 1000


def compare(title: str, counts: list[int], rounds: int, repeats: int) -> None:
    """Print a line for a group of these sizes."""
    bodies = variants([torch.ones(count) for count in counts])
    for body in [*bodies.values()] * WARM:
        body()
    times: dict[str, list[float]] = {name: [] for name in bodies}
    for _ in range(rounds):
        for name, body in bodies.items():
            times[name].append(measured(body, repeats))
    if hvd.rank() == 0:
        best = [min(pair) for pair in zip(times["blocking"], times["begun"], strict=True)]
        ratio = statistics.median(group / single for group, single in zip(times["grouped"], best, strict=True))
        medians = ", ".join(f"{name} {statistics.median(its):.1f} us" for name, its in times.items())
        sys.stdout.write(f"{title}: {medians}; grouped / the better one: {ratio:.2f}\n")


def main() -> None:
    """Measure."""
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    hvd.init()
    for tensors in (1, 2, 4, 8, 16, 64):
        compare(f"{tensors} of 4 KiB", [1024] * tensors, rounds, 50)
    compare("ResNet-50", resnet50_counts()[::-1], rounds, 1)


if __name__ == "__main__":
    main()
