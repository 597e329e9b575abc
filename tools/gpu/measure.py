"""Allreduce of cuda tensors, in every way that they can travel, beside torch's Gloo and what the device can copy. Markdown.

Started without arguments it starts its own ranks, for each way in turn. Ours and Gloo alternate in the same processes, on the
same tensors; medians. busbw is nccl-tests' word: 2 (n - 1) / n of the bytes, per second.

Terms.
  copy   bytes that the device reads and writes per second when it copies within itself: all that the ring does there
  limit  the time that the traffic of the ring takes at the speed of copy, where all ranks share one device: each rank packs
         (2 S), folds its chunk (S + S / n) and unpacks (2 S), so n ranks move (5 n + 1) S; in memory that the ranks
         share, each folds its chunk from all (S) into all (S): 2 n S. None is given below
         64 MiB, where the tensors may stay in the device's cache
"""

from __future__ import annotations

import datetime as dt
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from hvdtest.gpu import BEYOND_L2, WAYS
from hvdtest.launch import clean_environment, free_port, horovod_variables

SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26, "256 MiB": 1 << 28}
ROUNDS = 9
COPIED = 1 << 30
SHARED = "ring, in shared memory"
NAMES = {"ring": "ring", "nccl": "NCCL", "core": "staged by the core", "torch": "staged by torch"}
GIVEN_S = 45


def copy_speed() -> float:
    """Return the bytes read and written per second."""
    import torch

    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    took = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / 1e3)
    return 2 * COPIED / statistics.median(took[2:])


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of one call until it is complete on the device, begun by all ranks together."""
    import torch

    import hvd_kernel.torch as hvd

    torch.cuda.synchronize()
    hvd.barrier()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def sizes(way: str, copy: float) -> None:
    """Print one row for each size."""
    import torch
    import torch.distributed as dist
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import shared_memory as shared
    from hvd_kernel.torch import memory

    n, where = hvd.size(), device()
    for label, size in SIZES.items():
        x = torch.zeros(size // 4, device=where)
        ours: list[float] = []
        gloo: list[float] = []
        lent: list[float] = []
        home = memory.parts_of(shared.allocate_on_devices(size, x.get_device()), [0], [x])[0] if way == "ring" else x
        for _ in range(ROUNDS):
            ours.append(seconds(lambda: hvd.allreduce_(x, name="x", op=hvd.Sum)))
            if way == "ring":
                gloo.append(seconds(lambda: dist.all_reduce(x)))
                lent.append(seconds(lambda: hvd.allreduce_(home, name="home", op=hvd.Sum)))
        if hvd.rank() == 0:
            row(n, NAMES[way], label, size, statistics.median(ours[1:]), gloo[1:], copy)
            if gloo:
                row(n, SHARED, label, size, statistics.median(lent[1:]), gloo[1:], copy)
                row(n, "Gloo", label, size, statistics.median(gloo[1:]), [], 0.0)


def row(n: int, name: str, label: str, size: int, took: float, gloo: list[float], copy: float) -> None:  # noqa: PLR0917
    busbw = 2 * (n - 1) / n * size / took / 1e9
    moved = {"ring": (5 * n + 1) * size, SHARED: 2 * n * size}.get(name, 0)
    limited = moved and size >= BEYOND_L2 and int(os.environ["DEVICES"]) == 1
    share = f"{100 * moved / copy / took:.0f} %" if limited else ""
    times = f"{statistics.median(gloo) / took:.1f}" if gloo else ""
    print(f"| {n} | {label} | {name} | {1e3 * took:.3f} | {busbw:.2f} | {share} | {times} |", flush=True)


def rank_main(way: str, copy: float) -> None:
    import torch
    import torch.distributed as dist
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    torch.cuda.set_device(device())
    if way == "ring":
        meeting, patience = f"tcp://127.0.0.1:{os.environ['GLOO_PORT']}", dt.timedelta(seconds=GIVEN_S)
        dist.init_process_group("gloo", init_method=meeting, rank=hvd.rank(), world_size=hvd.size(), timeout=patience)
    sizes(way, copy)
    if way == "ring":
        dist.destroy_process_group()
    hvd.shutdown()


def ranks(n: int, way: str, copy: float, devices: int) -> None:
    """Run n ranks to their end; a way that fails is a line of the table."""
    port, gloo = free_port(), free_port()
    shared = {"GLOO_PORT": str(gloo), "GLOO_SOCKET_IFNAME": "lo", "DEVICES": str(devices), **WAYS[way]}
    command = [sys.executable, "-P", __file__, way, str(copy)]
    started = [
        subprocess.Popen(command, env=clean_environment(**shared, **horovod_variables(rank, n, port)))
        for rank in range(n)
    ]
    deadline = time.monotonic() + GIVEN_S
    try:
        ends = [rank.wait(max(0.0, deadline - time.monotonic())) for rank in started]
        failed = any(ends)
    except subprocess.TimeoutExpired:
        failed = True
    finally:  # also where we are interrupted: ranks that hang would keep the device busy
        for rank in started:
            rank.kill()
            rank.wait()
    if failed:
        print(f"| {n} | | {NAMES[way]} | failed | | | |", flush=True)


def threads(copy: float) -> None:
    """Run ranks as threads of one process; the table ends if they fail or hang."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("threads.py")), str(copy)]
    # By default streams of a context share 8 queues, and what spins in one would hold up what it waits for.
    env = os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    try:
        failed = subprocess.run(command, env=env, timeout=GIVEN_S, check=False).returncode != 0
        end = "failed" if failed else ""
    except subprocess.TimeoutExpired:
        end = f"cut short after {GIVEN_S} s"
    if end:
        print(f"| | | {end} | | | |", flush=True)


def main() -> None:
    """Print the copy speed, the table of sizes for 2 and 4 ranks with every path, and ranks as threads."""
    command = [sys.executable, "-P", __file__, "copy"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    copy, devices = map(float, done.stdout.split())
    print(
        f"\nDevice-to-device copy within one device: {copy / 1e9:,.0f} GB/s read and written; {devices:.0f} device(s)."
    )
    print("\n| ranks | size | way | ms | busbw GB/s | of the limit | times as fast as Gloo |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for n in (2, 4):
        for way in WAYS:
            if way != "nccl" or devices >= n:  # NCCL wants a device for each rank
                ranks(n, way, copy, int(devices))
    threads(copy)


if __name__ == "__main__":
    if sys.argv[1:] == ["copy"]:
        import torch

        if not torch.cuda.is_available():
            sys.exit("there is nothing to measure: torch sees no CUDA device (nvidia-smi says whether there is one)")
        print(copy_speed(), torch.cuda.device_count())
    elif sys.argv[1:]:
        rank_main(sys.argv[1], float(sys.argv[2]))
    else:
        main()
