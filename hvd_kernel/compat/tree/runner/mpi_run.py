"""``horovod.runner.mpi_run``: which MPI is here, and ranks that it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.compat.jobs import launch, mpi_arguments
from hvd_kernel.compat.tree.runner.common.util import tiny_shell_exec

_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"
_SIGNS = (  # what `mpirun --version` says; MPICH's and Intel's both name Hydra
    ("Open MPI", _OMPI_IMPL),
    ("OpenRTE", _OMPI_IMPL),
    ("IBM Spectrum MPI", _SMPI_IMPL),
    ("Intel(R) MPI", _IMPI_IMPL),
    ("MPICH", _MPICH_IMPL),
    ("HYDRA", _MPICH_IMPL),
)


def mpi_run(  # noqa: PLR0917 - Horovod's signature
    settings: Any,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    command: Any,
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Start the command on every rank with the mpiexec of this environment, and wait for their end."""
    arguments = mpi_arguments([settings.binding_args, settings.extra_mpi_args])
    more = {"NCCL_IB_DISABLE": "1"} if settings.tcp_flag else {}
    launch(
        settings,
        nics,
        dict(env) | more,
        command,
        stdout=stdout,
        stderr=stderr,
        use_mpi=True,
        mpi_args=arguments,
    )


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether there is an mpirun whose kind is known."""
    return _get_mpi_implementation(env) not in {_UNKNOWN_IMPL, _MISSING_IMPL}


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether mpirun is Open MPI's."""
    return _get_mpi_implementation(env) == _OMPI_IMPL


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether mpirun is IBM's."""
    return _get_mpi_implementation(env) == _SMPI_IMPL


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether mpirun is MPICH's."""
    return _get_mpi_implementation(env) == _MPICH_IMPL


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether mpirun is Intel's."""
    return _get_mpi_implementation(env) == _IMPI_IMPL


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    said, status = tiny_shell_exec.execute("mpirun --version", env) or ("", 1)
    if status:
        return _MISSING_IMPL
    return next((kind for sign, kind in _SIGNS if sign in said), _UNKNOWN_IMPL)
