"""Environment variables of launchers (mpirun, srun, torchrun, horovodrun) that our ranks must not inherit.

Variables with which users configure Open MPI (such as ``OMPI_MCA_btl_tcp_if_include``) are inherited.
"""

from __future__ import annotations

from collections.abc import Mapping

_FOREIGN = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "JSM_",
    "TORCHELASTIC_",
    "HOROVOD_LOCAL_",
    "HOROVOD_CROSS_",
    "HOROVOD_GLOO_REN",
)
_FOREIGN_NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER_ADDR", "HOROVOD_CONTROLLER_PORT"),
        *("HVD_BOOTSTRAP", "HVD_SECRET_KEY", "HVD_AGENT_SOCKET"),
    }
)
_USERS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")


def without_launchers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of other launchers."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(_USERS) or not (name.startswith(_FOREIGN) or name in _FOREIGN_NAMES)
    }
