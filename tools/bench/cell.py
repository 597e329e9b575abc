"""A warm trivial cell on four ranks, ours against ``%%px``, and the iopub bytes of 4 x 800 lines of stdout. JSON on stdout."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from kernel_client import Kernel
from start import PEER_MCA

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
    """Both clusters live in one kernel; the cells alternate."""
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
