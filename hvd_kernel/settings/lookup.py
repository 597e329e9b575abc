"""Lookup of settings in the environment: options for the core, and settings that other modules read.

The tables of ``hvd_kernel.settings`` define the variables and their meaning. ``without_launchers`` removes variables of
other launchers (mpirun, srun, torchrun, horovodrun), which our ranks must not inherit; variables with which users
configure Open MPI (such as ``OMPI_MCA_btl_tcp_if_include``) are inherited.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings import SETTINGS, Setting, horovod

Env = Mapping[str, str]

_LOG = logging.getLogger("hvd_kernel")
_logged: set[str] = set()


def engine_options(env: Env | None = None) -> dict[str, str]:
    """Return the core's options that the environment sets, checked. The core chooses all others.

    Only keys that the user has set are included: autotune does not change them.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used; the message has the variable, the value and the expected form.
    """
    values, _ = horovod.read(os.environ if env is None else env)
    options: dict[str, str] = {}
    for setting in SETTINGS:
        value = _read(values, setting)
        if value and setting.key:
            options[setting.key] = value
    return options


def value(name: str, env: Env) -> str:
    """Return a setting that the core does not read, by its first variable; its default if no variable is set.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used.
    """
    row = next(row for row in SETTINGS if row.variables[0] == name)
    return _read(horovod.read(env)[0], row) or row.default


def log_substitutions(env: Env) -> None:
    """Log how values of Horovod's variables are substituted, each sentence once per process."""
    for sentence in horovod.read(env)[1]:
        if sentence not in _logged:
            _logged.add(sentence)
            _LOG.warning("hvd_kernel: %s", sentence)


def _read(values: Env, row: Setting) -> str:
    variable = next((v for v in row.variables if values.get(v)), None)
    if variable is None:
        return ""
    try:
        return row.check(values[variable])
    except ValueError as expected:
        message = f"{variable}={values[variable]!r} cannot be used: it must be {expected} ({row.doc})."
        raise ConfigError(message) from None


def start_timeout(env: Env | None = None, unset: float | None = None) -> float:
    """Return the timeout of ``init()`` in seconds: the user's, else ``unset``, else the default."""
    default = next(s.default for s in SETTINGS if s.key == "start_timeout_s") if unset is None else unset
    return float(engine_options(env).get("start_timeout_s", default))


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
        *("HVD_BOOTSTRAP", "HVD_SECRET_KEY", "HVD_AGENT_SOCKET", "HVD_TORCH_ADDRESS"),
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
