"""Staged cuda tensors against torch's Gloo on the same tensors, and host tensors against Gloo, interleaved in one run. Markdown.

Started without arguments it starts its own ranks; the ratio of a row is Gloo's time over ours: above 1, ours is faster.
"""

from __future__ import annotations

import datetime as dt
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hvdtest.launch import free_port

SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26}
ROUNDS = 9


def rank_main() -> None:
    """One rank: both libraries side by side, every size, on the host and on the device."""
    import torch
    import torch.distributed as dist

    import hvd_kernel.torch as hvd

    torch.set_num_threads(1)
    gloo_port = os.environ["GLOO_PORT"]
    hvd.init()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{gloo_port}",
        rank=hvd.rank(),
        world_size=hvd.size(),
        timeout=dt.timedelta(seconds=60),
    )
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for label, size in SIZES.items():
            x = torch.zeros(size // 4, device=device)
            ours: list[float] = []
            gloo: list[float] = []

            def timed(call: object, into: list[float]) -> None:
                hvd.barrier()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize() if device == "cuda" else None
                into.append(time.perf_counter() - start)

            for _ in range(ROUNDS):
                timed(lambda: hvd.allreduce_(x, name="x", op=hvd.Sum), ours)
                timed(lambda: dist.all_reduce(x), gloo)
            if hvd.rank() == 0:
                a, b = statistics.median(ours[1:]), statistics.median(gloo[1:])
                n = hvd.size()
                busbw = 2 * (n - 1) / n * size / a / 1e9
                print(f"| {n} | {device} | {label} | {1e3 * a:.3f} | {busbw:.2f} | {1e3 * b:.3f} | {b / a:.2f} |")
    dist.destroy_process_group()
    hvd.shutdown()


def main() -> None:
    """Start 2 and 4 ranks in turn; print one table."""
    print("\n| ranks | tensors on | size | hvd_kernel ms | busbw GB/s | Gloo ms | Gloo / hvd_kernel |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for n in (2, 4):
        port, gloo = free_port(), free_port()
        common = {"HOROVOD_SIZE": str(n), "HOROVOD_CONTROLLER_ADDR": "127.0.0.1", "HOROVOD_CONTROLLER_PORT": str(port)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-P", __file__, "rank"],
                env={
                    **os.environ,
                    **common,
                    "HOROVOD_RANK": str(r),
                    "GLOO_PORT": str(gloo),
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for r in range(n)
        ]
        if any(status for status in [rank.wait(240) for rank in ranks]):
            sys.exit("a rank failed")


if __name__ == "__main__":
    rank_main() if sys.argv[1:] == ["rank"] else main()
