"""``hvdrun --check-build``: what is here, in Horovod's layout, and what Horovod does not ask for below it.

What could end a process is tried in another one.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hvd_kernel
from hvd_kernel.cluster.launcher import find_mpiexec
from hvd_kernel.errors import ClusterError
from hvd_kernel.gpus import has_plugin
from hvd_kernel.processes import libraries

_TRY_S = 60.0
FRAMEWORKS = (
    ("TensorFlow", "tensorflow"),
    ("PyTorch", "torch"),
    ("MXNet", "mxnet"),
    ("NumPy", "numpy"),
    ("JAX", "jax"),
    ("Keras", "keras"),
)
"""A framework's title and its package's name: Horovod's three, then others."""

Rows = Sequence[tuple[str, bool]]


def report() -> str:
    """Return the page."""
    core, why = _core()
    mpi, nccl = libraries.mpi(), has_plugin() and libraries.nccl() > 0
    groups: tuple[tuple[str, Rows], ...] = (
        ("Available Frameworks", [(title, _front_end(name)) for title, name in FRAMEWORKS]),
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
    return "\n".join([*lines, *([] if core else ["", f"The core cannot be loaded: {why}"])]) + "\n"


def _front_end(name: str) -> bool:
    """Both the framework and our front end for it."""
    ours = Path(hvd_kernel.__file__).parent / name / "__init__.py"
    return ours.exists() and importlib.util.find_spec(name) is not None


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
