"""``horovod.runner.common.util.env``: what the environment says of a rank, and what of it ranks are given."""

from __future__ import annotations

import os
import re

from hvd_kernel.compat.tree.runner.common.util.secret import HOROVOD_SECRET_KEY

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", HOROVOD_SECRET_KEY}
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v: str) -> bool:
    """Tell whether ranks are given the variable of that name."""
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return this rank and the number of ranks; 0 and 1 where the environment says nothing.

    Raises
    ------
    RuntimeError
        It says only one of them.
    """
    for names in _PAIRS:
        found = [os.environ[name] for name in names if name in os.environ]
        if len(found) == 1:
            raise RuntimeError(f"Could not determine process rank and size: only one of {' and '.join(names)} is set.")
        if found:
            return int(found[0]), int(found[1])
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Tell whether this runs in a pod of Kubeflow's MPI operator."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC  # noqa: SIM112 - its name
