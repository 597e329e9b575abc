"""Start of four ranks with torch imported, against plain ipyparallel in the same run: ``start.py [ROUNDS]``, JSON on stdout."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

RANKS = 4
PEER_MCA = "--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,sm,tcp"


def ours() -> float:
    """Return the seconds until an allreduce has succeeded and every rank has torch."""
    from hvd_kernel.cluster import Session
    from hvd_kernel.processes.cluster_spec import ClusterSpec

    start = time.monotonic()
    session = Session.start(ClusterSpec(n=RANKS))
    run = session.run("import torch")
    while not run.done:
        run.next(0.1)
    seconds = time.monotonic() - start
    session.stop()
    return seconds


def peer() -> float:
    """Return the seconds until ipyparallel.Cluster(engines="mpi", n=4) has imported torch on every engine."""
    import ipyparallel as ipp

    start = time.monotonic()
    cluster = ipp.Cluster(n=RANKS, engines="mpi", log_level=50)
    cluster.config.MPILauncher.mpi_cmd = [str(Path(sys.prefix, "bin", "mpiexec"))]
    cluster.config.MPILauncher.mpi_args = PEER_MCA.split()
    client = cluster.start_and_connect_sync(activate=False)
    client[:].execute("import torch", block=True)
    seconds = time.monotonic() - start
    client.close()
    cluster.stop_cluster_sync()
    return seconds


def main() -> None:
    """Alternate both; print medians and the median of the paired ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pairs = [(ours(), peer()) for _ in range(rounds)]
    result = {
        "ours_s": round(statistics.median(a for a, _ in pairs), 2),
        "ipyparallel_s": round(statistics.median(b for _, b in pairs), 2),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "rounds": rounds,
    }
    json.dump(result, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
