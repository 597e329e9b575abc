"""A warm trivial cell on four ranks, ours against ``%%px``, and the iopub bytes of 4 x 800 lines of stdout. JSON on stdout.

Also the kernel that the benchmarks drive: it runs a cell, and returns its seconds and the bytes received over iopub."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jupyter_client.manager import KernelManager

sys.path.insert(0, str(Path(__file__).parent))
from start import PEER_MCA


@dataclass
class Cell:
    """Result of a cell."""

    seconds: float
    iopub_bytes: int
    messages: list[dict[str, Any]]


class Kernel:
    """Kernel of the benchmarks, a context manager; ``run`` raises RuntimeError if the cell fails."""

    def __enter__(self) -> Self:
        self.manager = KernelManager(kernel_name="hvd_kernel")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)

    def run(self, code: str, timeout: float = 120) -> Cell:
        """Execute; bytes are those of the raw multipart frames."""
        socket = self.client.iopub_channel.socket
        session = self.client.session
        start = time.perf_counter()
        sent = self.client.execute(code)
        size, messages = 0, []
        while True:
            if not socket.poll(int(timeout * 1000)):
                raise TimeoutError(code)
            frames = socket.recv_multipart()
            size += sum(map(len, frames))
            _, rest = session.feed_identities(frames)
            message = session.deserialize(rest)
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        seconds = time.perf_counter() - start
        reply = self.client.get_shell_msg(timeout=timeout)["content"]
        if reply["status"] != "ok":
            raise RuntimeError("\n".join(reply.get("traceback", [reply["status"]])))
        return Cell(seconds, size, messages)


PEER = f"""
import ipyparallel as ipp, os, sys
cluster = ipp.Cluster(n=4, engines="mpi", log_level=50)
cluster.config.MPILauncher.mpi_cmd = [os.path.join(sys.prefix, "bin", "mpiexec")]
cluster.config.MPILauncher.mpi_args = {PEER_MCA!r}.split()
client = cluster.start_and_connect_sync(activate=True)
"""
LINES = 'for i in range(800):\n    print(f"rank {rank} line {i:05d} ......")'
ROUNDS = 41


def main() -> None:
    """Run both clusters in one kernel, and alternate the cells."""
    with Kernel() as kernel:
        kernel.run("%%hvdrun -np 4\n1 + 1")
        kernel.run(PEER)
        pairs = [(kernel.run("%%hvdrun\n1 + 1").seconds, kernel.run("%%px\n1 + 1").seconds) for _ in range(ROUNDS)][1:]
        payload = sum(len(f"rank {r} line {i:05d} ......\n") for r in range(4) for i in range(800))
        flood = kernel.run("%%hvdrun\n" + LINES).iopub_bytes
        kernel.run("client.close(); cluster.stop_cluster_sync()")
        kernel.run("%hvd stop")
    result = {
        "hvdrun_ms": round(1e3 * statistics.median(a for a, _ in pairs), 2),
        "px_ms": round(1e3 * statistics.median(b for _, b in pairs), 2),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "stdout_payload_bytes": payload,
        "stdout_iopub_bytes": flood,
        "stdout_ratio": round(flood / payload, 3),
    }
    json.dump(result, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
