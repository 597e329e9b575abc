"""A warm trivial cell is not slower than ipyparallel's %%px on its own MPI engines, measured in turns in one kernel."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.bench, pytest.mark.timeout(240)]

PX = """
import os, sys, ipyparallel
cluster = ipyparallel.Cluster(n=4, engines="mpi", controller_args=["--HeartMonitor.period=300"])
cluster.config.MPILauncher.mpi_cmd = [os.path.join(sys.prefix, "bin", "mpiexec")]
cluster.config.MPILauncher.mpi_args = (
    "--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,sm,tcp".split()
)
client = cluster.start_and_connect_sync()
"""


def test_a_trivial_cell_is_not_slower_than_px(tmp_path: Path) -> None:
    with Kernel(tmp_path, patience=20) as kernel:  # ipyparallel takes its time to end
        try:
            kernel.run(PX, timeout=120)
            kernel.run("%%hvdrun -np 4\n1 + 1", timeout=120)
            cells = {"%%px\n1 + 1": [], "%%hvdrun\n1 + 1": []}
            for _ in range(40):
                for cell, seconds in cells.items():
                    seconds.append(kernel.run(cell).seconds)
        finally:
            kernel.run("cluster.stop_cluster_sync()", timeout=60)
    px, ours = (statistics.median(seconds[5:]) for seconds in cells.values())
    print(f"%%px {px * 1e3:.1f} ms, %%hvdrun {ours * 1e3:.1f} ms")
    assert ours <= px
