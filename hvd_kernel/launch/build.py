"""``hvdrun --check-build``: what is here, as Horovod lays it out. What could end a process is tried in another one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import hvd_kernel
from hvd_kernel.cluster.launcher import find_mpiexec
from hvd_kernel.errors import ClusterError
from hvd_kernel.gpus import has_plugin

_TRY_S = 60.0
_FRONTENDS = (
    ("PyTorch", "torch"),
    ("TensorFlow", "tensorflow"),
    ("Keras", "keras"),
    ("JAX", "jax"),
    ("MXNet", "mxnet"),
)


def report() -> str:
    """Return the page."""
    core, why = _core()
    mpi = importlib.util.find_spec("mpi4py") is not None and _has_mpiexec()
    groups = (
        ("Available Frameworks", [(title, _front_end(name)) for title, name in _FRONTENDS]),
        ("Available Controllers", [("MPI", mpi), ("Gloo (the core's own, over TCP)", core)]),
        (
            "Available Tensor Operations",
            [("NCCL", has_plugin() and _has_nccl()), ("MPI", mpi and core), ("the core's own", core)],
        ),
        ("GPU", [("NVIDIA driver", shutil.which("nvidia-smi") is not None), ("the core's CUDA plugin", has_plugin())]),
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


def _has_nccl() -> bool:
    """Whether its wheel is here, which torch for CUDA brings."""
    folders = (Path(folder) / "nvidia" / "nccl" / "lib" for folder in sys.path)
    return any((folder / "libnccl.so.2").exists() for folder in folders)


def _core() -> tuple[bool, str]:
    look = [sys.executable, "-P", "-c", "import hvd_kernel._native"]
    done = subprocess.run(look, capture_output=True, text=True, timeout=_TRY_S, check=False)  # noqa: S603 - our own words
    said = done.stderr.strip().splitlines()
    return done.returncode == 0, said[-1] if said else ""
