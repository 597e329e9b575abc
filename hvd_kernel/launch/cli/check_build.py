"""``hvdrun --check-build``: available frameworks and libraries in Horovod's layout, followed by hvd_kernel's own.

An import that could crash is tried in another process.
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
from hvd_kernel.processes.open_mpi import find_mpiexec
from hvd_kernel.settings.gpus import has_plugin

_IMPORT_TIMEOUT_S = 60.0
Rows = Sequence[tuple[str, bool]]


def report() -> str:
    """Return the report."""
    core, core_error = _core()
    mpi, nccl = libraries.mpi(), has_plugin() and libraries.nccl() > 0
    frameworks = installed.all_states()
    groups: tuple[tuple[str, Rows], ...] = (
        ("Available Frameworks", [(framework.title, framework.works) for framework in frameworks]),
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
        lines += ["", f"{title}:", *(f"    [{'X' if available else ' '}] {name}" for name, available in rows)]
    lines += ["", "Frameworks that are installed:", *(f"    {line}" for line in _lines(frameworks))]
    return "\n".join([*lines, *([] if core else ["", f"The core cannot be loaded: {core_error}"])]) + "\n"


def _lines(frameworks: Sequence[installed.Installed]) -> list[str]:
    lines = []
    for framework in frameworks:
        if framework.version:
            problem = "" if framework.works else f" does not work: {framework.summary}"
            lines.append(f"{framework.title} {framework.version}{problem}")
            if framework.works:
                lines += [
                    f"    [{' ' if reason else 'X'}] {feature}{reason and f': {reason}'}"
                    for feature, reason in framework.features
                ]
    return lines


def _has_mpiexec() -> bool:
    try:
        find_mpiexec()
    except ClusterError:
        return False
    return True


def _core() -> tuple[bool, str]:
    command = [sys.executable, "-P", "-c", "import hvd_kernel._native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)  # noqa: S603
    lines = done.stderr.strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else ""
