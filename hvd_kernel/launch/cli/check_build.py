"""``hvdrun --check-build``: what is here, in Horovod's layout, and what Horovod does not ask for below it.

What could end a process is tried in another one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

import hvd_kernel
from hvd_kernel.errors import ClusterError
from hvd_kernel.frameworks import installed
from hvd_kernel.processes import libraries
from hvd_kernel.processes.mpi.open_mpi import find_mpiexec
from hvd_kernel.settings.gpus import has_plugin

_TRY_S = 60.0
Rows = Sequence[tuple[str, bool]]


def report() -> str:
    """Return the page."""
    core, why = _core()
    mpi, nccl = libraries.mpi(), has_plugin() and libraries.nccl() > 0
    frameworks = installed.all_states()
    groups: tuple[tuple[str, Rows], ...] = (
        ("Available Frameworks", [(each.title, each.works) for each in frameworks]),
        ("Available Controllers", [("MPI", mpi), ("Gloo", core)]),
        (
            "Available Tensor Operations",
            [("NCCL", nccl), ("DDL", False), ("CCL", False), ("MPI", mpi and core), ("Gloo", core)],
        ),
        (
            "Available to hvd_kernel",
            [
                ("the core, which stands for Gloo", core),
                ("mpiexec, for hvdrun --mpi and for clusters of notebooks", _has_mpiexec()),
                ("NVIDIA driver", shutil.which("nvidia-smi") is not None),
                ("the core's CUDA plugin", has_plugin()),
            ],
        ),
    )
    lines = [f"hvd_kernel v{hvd_kernel.__version__}, Python {sys.version.split()[0]} at {sys.executable}:"]
    for title, rows in groups:
        lines += ["", f"{title}:", *(f"    [{'X' if there else ' '}] {name}" for name, there in rows)]
    lines += ["", "Frameworks that are installed:", *(f"    {line}" for line in _lines(frameworks))]
    return "\n".join([*lines, *([] if core else ["", f"The core cannot be loaded: {why}"])]) + "\n"


def _lines(frameworks: Sequence[installed.Installed]) -> list[str]:
    lines = []
    for each in frameworks:
        if each.version:
            lines.append(f"{each.title} {each.version}" + ("" if each.works else f" does not work: {each.summary}"))
            lines += [
                f"    [{' ' if why else 'X'}] {feature}{why and f': {why}'}"
                for feature, why in each.features
                if each.works
            ]
    return lines


def _has_mpiexec() -> bool:
    try:
        find_mpiexec()
    except ClusterError:
        return False
    return True


def _core() -> tuple[bool, str]:
    look = [sys.executable, "-P", "-c", "import hvd_kernel._native"]
    done = subprocess.run(look, capture_output=True, text=True, timeout=_TRY_S, check=False)  # noqa: S603 - our own words
    said = done.stderr.strip().splitlines()
    return done.returncode == 0, said[-1] if said else ""
