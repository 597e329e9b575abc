"""Other MPIs installed on this machine: MPICH and Intel MPI, in addition to the one that starts the benchmark's ranks.

A process can use one MPI, so each MPI starts separate ranks with its own mpiexec. Ours takes part in them, so that the
ratio of times is measured in the same rounds. mpi4py's wheel is built for both families of MPIs, and loads the library
in LD_LIBRARY_PATH.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.settings.lookup import without_launchers

_NAMES = ("mpiexec.hydra", "mpiexec.mpich", "mpiexec")
_SIGNS = {"HYDRA": "MPICH", "Intel(R) MPI": "Intel MPI"}
"""Text in the output of ``--version`` of the MPIs that share an ABI with mpi4py's second build."""

_TAIL = 4000


@dataclass(frozen=True)
class OtherMpi:
    """An installed MPI."""

    name: str
    version: str
    mpiexec: Path


def installed(path: str | None = None) -> list[OtherMpi]:
    """Return the MPIs on PATH and below I_MPI_ROOT, without duplicate versions; an empty list without mpi4py.

    The environment's own mpiexec is left out: it starts the ranks of the other contenders.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return []
    folders = [*(path if path is not None else os.environ.get("PATH", "")).split(os.pathsep)]
    folders += [f"{root}/bin" for root in [os.environ.get("I_MPI_ROOT")] if root]
    environment = Path(sys.prefix, "bin").resolve()
    mpis: dict[tuple[str, str], OtherMpi] = {}
    for folder in map(Path, filter(None, folders)):
        programs = [folder / name for name in _NAMES if os.access(folder / name, os.X_OK)]
        for program in programs if folder.resolve() != environment else []:
            if (mpi := _identify(program)) is not None:
                mpis.setdefault((mpi.name, mpi.version), mpi)
    return [*mpis.values()]


def _identify(program: Path) -> OtherMpi | None:
    try:
        command = [str(program), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - on PATH
    except (OSError, subprocess.SubprocessError):
        return None
    output = done.stdout + done.stderr
    version = re.search(r"[Vv]ersion:?\s+(\d[\w.]*)", output)
    name = next((name for sign, name in _SIGNS.items() if sign in output), None)
    return OtherMpi(name, version.group(1) if version else "", program) if name else None


def run_ranks(mpi: OtherMpi, np: int, arguments: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> None:
    """Run ``python -m hvd_kernel.bench.rank`` on np ranks of an MPI.

    Raises
    ------
    ClusterError
        A rank failed, or the ranks did not finish in time; the message contains their output.
    """
    prefix = mpi.mpiexec.resolve().parent.parent
    libraries = [str(prefix / "lib"), str(prefix / "lib" / "release"), os.environ.get("LD_LIBRARY_PATH", "")]
    env = without_launchers(os.environ) | dict(variables)
    env |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    command = [str(mpi.mpiexec), "-n", str(np), sys.executable, "-P", "-m", "hvd_kernel.bench.rank", *arguments]
    with subprocess.Popen(  # noqa: S603 - found above
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ClusterError(f"the ranks did not end in {timeout_s:.0f} s") from None
            raise
    if process.returncode:
        raise ClusterError(f"{mpi.mpiexec} ended with status {process.returncode}:\n{output[-_TAIL:]}")
