"""What can be set from outside: options for the core, read from the environment, and the shape of a cluster.

A shared leaf. The variables and their meaning are the tables of ``hvd_kernel.settings``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvd_kernel import gpus as devices
from hvd_kernel.errors import ConfigError
from hvd_kernel.processes.limits import Limits
from hvd_kernel.settings import ELSEWHERE, SETTINGS, lenient

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
    values, _ = lenient.read(os.environ if env is None else env)
    found: dict[str, str] = {}
    for setting in SETTINGS:
        value = _read(values, setting.variables, setting.check, setting.doc)
        if value:
            found[setting.key] = value
    for row in ELSEWHERE:
        _read(values, row.variables, row.check, row.doc)
    return found


def elsewhere(name: str, env: Env) -> str:
    """Value of a setting that the core does not read, by the first of its variables; its default where none is set.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used.
    """
    row = next(row for row in ELSEWHERE if row.variables[0] == name)
    return _read(lenient.read(env)[0], row.variables, row.check, row.doc) or row.default


def tell(env: Env) -> None:
    """Say what is done instead of what Horovod's variables ask for; of one process, each sentence once."""
    for sentence in lenient.read(env)[1]:
        if sentence not in _told:
            _told.add(sentence)
            _LOG.warning("hvd_kernel: %s", sentence)


def _read(values: Env, variables: Sequence[str], check: Callable[[str], str], doc: str) -> str:
    variable = next((v for v in variables if values.get(v)), None)
    if variable is None:
        return ""
    try:
        return check(values[variable])
    except ValueError as wanted:
        raise ConfigError(f"{variable}={values[variable]!r} cannot be used: it must be {wanted} ({doc}).") from None


def start_timeout(env: Env | None = None, unset: float | None = None) -> float:
    """Seconds that ``init()`` waits for the other ranks; ``unset`` where nobody has set them, or None: the default."""
    default = next(s.default for s in SETTINGS if s.key == "start_timeout_s") if unset is None else unset
    return float(engine_options(env).get("start_timeout_s", default))


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster a notebook asks for: how many ranks, where, and how MPI starts them."""

    n: int
    hosts: str = ""  # "a:2,b:2"; empty: this machine
    hostfile: str = ""  # path of a file of lines "host slots=N"
    mpi_args: tuple[str, ...] = ()  # given to mpiexec as they are
    start_timeout_s: float = 120.0  # a dead start is seen at once; this is for a machine that is merely busy
    gpus: str = ""  # auto, all, none or 0,1; empty: HVD_GPUS, else auto
    limits: tuple[Limits, ...] = ()  # of each rank; (): none has any; kept for the ranks of this host

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"a cluster of {self.n} ranks cannot be started: ask for 1 or more, e.g. -np 4.")
        if self.hosts and self.hostfile:
            raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
        if self.limits and len(self.limits) != self.n:
            raise ConfigError(f"limits are for {len(self.limits)} rank(s), but the cluster has {self.n}.")
        if self.gpus:
            devices.checked(self.gpus)
        if self.start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s={self.start_timeout_s:g} must be above 0 seconds.")
