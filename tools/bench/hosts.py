"""Two hosts (network namespaces joined by veth): allreduce over TCP beside a plain socket loop that moves as many bytes.

python tools/bench/hosts.py   (as root)

An allreduce of N bytes on two ranks sends N bytes and receives N bytes on each: half as input, half as result.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from hvdtest.hosts import HostPool, Hosts, address, why_not

BYTES = 64 << 20
ROUNDS = 9
PIECE = 256 << 10
PORT = 40077


def exchange(line: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
    """Send all and receive all at once, in the one thread that there is."""
    sent = received = 0
    while sent < len(outgoing) or received < len(incoming):
        reading, writing, _ = select.select(
            [line] if received < len(incoming) else [], [line] if sent < len(outgoing) else [], []
        )
        if reading:
            received += line.recv_into(incoming[received : received + PIECE])
        if writing:
            sent += line.send(outgoing[sent : sent + PIECE])


def connect(rank: int, host: str) -> socket.socket:
    """Open a connection between the two ranks, in addition to the core's."""
    import hvd_kernel.torch as hvd

    if rank == 0:
        with socket.create_server((host, PORT)) as listener:
            hvd.barrier()
            line, _ = listener.accept()
    else:
        hvd.barrier()
        line = socket.create_connection((host, PORT))
    line.setblocking(False)
    return line


def measure(host: str, size: int, rounds: int) -> list[list[float]]:
    """Return the seconds of the plain loop and of the allreduce, measured in turn."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    tensor = torch.zeros(size // 4)
    outgoing, incoming = memoryview(bytearray(size)), memoryview(bytearray(size))
    times: list[list[float]] = [[], []]
    with connect(hvd.rank(), host) as line:
        for _ in range(rounds + 1):
            for number, work in enumerate(
                (lambda: exchange(line, outgoing, incoming), lambda: hvd.allreduce_(tensor, name="t", op=hvd.Sum))
            ):
                hvd.barrier()
                began = time.perf_counter()
                work()
                times[number].append(time.perf_counter() - began)
    return [row[1:] for row in times]


def main() -> None:
    """Print the medians and the ratio of the slower rank."""
    if why_not():
        sys.exit(why_not())
    with Hosts(2) as hosts, HostPool(hosts, [0, 1], HVD_SECRET_KEY="0123456789abcdef" * 2) as pool:
        measured = pool.run(measure, address(0), BYTES, ROUNDS, timeout=200)
    plain, ours = ([max(pair) for pair in zip(*(rank[which] for rank in measured), strict=True)] for which in (0, 1))
    ratio = statistics.median(p / o for p, o in zip(plain, ours, strict=True))
    sys.stdout.write(
        f"64 MiB each way, 2 hosts: plain socket {statistics.median(plain) * 1e3:.1f} ms, "
        f"allreduce {statistics.median(ours) * 1e3:.1f} ms: {ratio:.2f} of the plain loop's speed\n"
    )


if __name__ == "__main__":
    main()
