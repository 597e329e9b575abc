"""Lookup of settings in the environment: options for the core, and what another part reads itself.

A shared leaf. The variables and their meaning are the tables of ``hvd_kernel.settings``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings import SETTINGS, Setting, horovod

Env = Mapping[str, str]

_LOG = logging.getLogger("hvd_kernel")
_told: set[str] = set()


def engine_options(env: Env | None = None) -> dict[str, str]:
    """Options for the core: what the environment sets, checked. What it does not set is the core's to choose.

    A key that is given is one that the user has set: autotune leaves it alone.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used; the message names the variable, the value and what is wanted.
    """
    values, _ = horovod.read(os.environ if env is None else env)
    found: dict[str, str] = {}
    for setting in SETTINGS:
        value = _read(values, setting)
        if value and setting.key:
            found[setting.key] = value
    return found


def value(name: str, env: Env) -> str:
    """Value of a setting that the core does not read, by the first of its variables; its default where none is set.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used.
    """
    row = next(row for row in SETTINGS if row.variables[0] == name)
    return _read(horovod.read(env)[0], row) or row.default


def tell(env: Env) -> None:
    """Say what is done instead of what Horovod's variables ask for; of one process, each sentence once."""
    for sentence in horovod.read(env)[1]:
        if sentence not in _told:
            _told.add(sentence)
            _LOG.warning("hvd_kernel: %s", sentence)


def _read(values: Env, row: Setting) -> str:
    variable = next((v for v in row.variables if values.get(v)), None)
    if variable is None:
        return ""
    try:
        return row.check(values[variable])
    except ValueError as wanted:
        raise ConfigError(f"{variable}={values[variable]!r} cannot be used: it must be {wanted} ({row.doc}).") from None


def start_timeout(env: Env | None = None, unset: float | None = None) -> float:
    """Seconds that ``init()`` waits for the other ranks; ``unset`` where nobody has set them, or None: the default."""
    default = next(s.default for s in SETTINGS if s.key == "start_timeout_s") if unset is None else unset
    return float(engine_options(env).get("start_timeout_s", default))
