"""One rank of one library: sums arrays on request of a unix socket, and replies with the time that it took.

    python one_rank.py ours|gloo|mpi SOCKET

A task is a line {"bytes": ..., "times": ...}; the answer a line {"seconds": of one sum, "right": all elements were exact}.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Reduce = Callable[[Any], object]  # sums an array over all ranks, in place


def ours() -> tuple[int, int, Reduce]:
    """Return the allreduce of this tree's core."""
    import hvd_kernel.numpy as hvd

    hvd.init()
    return hvd.rank(), hvd.size(), lambda array: hvd.allreduce_(array, name=f"sum{array.nbytes}", op=hvd.Sum)


def gloo() -> tuple[int, int, Reduce]:
    """Return the allreduce of torch.distributed's Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor_of = cache(lambda size: torch.from_numpy(array_of(size)))
    return dist.get_rank(), dist.get_world_size(), lambda array: dist.all_reduce(tensor_of(array.nbytes))


def mpi() -> tuple[int, int, Reduce]:
    """Return the allreduce of mpi4py's MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.size, lambda array: world.Allreduce(MPI.IN_PLACE, array)


@cache
def array_of(size: int) -> Any:
    """Return an array of that number of bytes."""
    return np.zeros(size // 4, np.float32)


def answer(task: dict[str, int], rank: int, ranks: int, reduce: Reduce) -> dict[str, Any]:
    """Check one sum, which also has all ranks begin together, and measure the others."""
    array = array_of(task["bytes"])
    pattern = np.arange(array.size, dtype=np.float32) % 7 + 1
    array[:] = pattern * (rank + 1)
    reduce(array)
    right = bool((array == pattern * (ranks * (ranks + 1) // 2)).all())
    array[:] = 0
    reduce(array)
    began = time.perf_counter()
    for _ in range(task["times"]):
        reduce(array)
    return {"seconds": (time.perf_counter() - began) / task["times"], "right": right}


def main() -> None:
    """Join the other ranks, then serve requests until the connection closes."""
    library, where = sys.argv[1:]
    rank, ranks, reduce = {"ours": ours, "gloo": gloo, "mpi": mpi}[library]()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(where)
        with line.makefile("rw") as tasks:
            tasks.write(json.dumps({"rank": rank, "pid": os.getpid()}) + "\n")
            tasks.flush()
            for task in iter(tasks.readline, ""):
                tasks.write(json.dumps(answer(json.loads(task), rank, ranks, reduce)) + "\n")
                tasks.flush()


if __name__ == "__main__":
    main()
