"""Libraries that collectives may use besides the core: MPI and NCCL, located like the core locates them."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

_NCCL = "libnccl.so.2"
_OLDEST_NCCL = 21_901  # as in native/cuda/nccl/nccl.h


def mpi() -> bool:
    """Return whether mpi4py is installed, which ranks use for the rendezvous under mpirun and HVD_TRANSPORT=mpi."""
    return importlib.util.find_spec("mpi4py") is not None


def nccl() -> int:
    """Return the version code of NCCL's wheel or the system's NCCL, 22705 for 2.27.5; 0 if the core would use none."""
    library = next((library for name in _candidates() if (library := _open(name)) is not None), None)
    if library is None:
        return 0
    code = ctypes.c_int(0)
    failed = library.ncclGetVersion(ctypes.byref(code))
    return 0 if failed or code.value < _OLDEST_NCCL else code.value


def _candidates() -> list[str]:
    core = importlib.util.find_spec("hvd_kernel._native")
    beside = [] if core is None or core.origin is None else [Path(core.origin).parents[1]]
    return [*(str(folder / "nvidia" / "nccl" / "lib" / _NCCL) for folder in beside), _NCCL]


def _open(name: str) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(name)
        library.ncclGetVersion  # noqa: B018 - looked up, not called
    except (OSError, AttributeError):
        return None
    return library
