"""Options of an elastic job: the limits of its size, its source of hosts, and when it fails. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.elastic.discovery import HostDiscovery
from hvd_kernel.launch.placement import Host

INTERVAL_S = 1.0
COOLDOWN_S = (1, 3600)
"""Shortest and longest cooldown in seconds, as in Horovod."""


@dataclass(frozen=True)
class ElasticOptions:
    """Options of one job. ``hosts`` or ``script`` determines where ranks may run.

    Raises
    ------
    ConfigError
        Two options contradict each other; the message names both as on the command line.
    """

    np: int  # slots that must be available before the first start
    min_np: int  # with fewer ranks the job waits
    max_np: int | None = None  # further slots stay empty; None: all slots are used
    hosts: tuple[Host, ...] = ()
    script: str | HostDiscovery = ""
    slots: int | None = None  # of a host for which the script prints no number
    timeout_s: float | None = None  # longest wait for min_np slots; None: HOROVOD_ELASTIC_TIMEOUT
    reset_limit: int | None = None  # None: HVD_RESET_LIMIT
    max_restarts: int | None = None  # processes that may be started to replace failed ones
    cooldown_s: tuple[int, int] | None = None  # None: a host that has been left out is not used again
    interval_s: float = INTERVAL_S  # between the end of one run of the script and the next
    spares: int | None = None  # processes that wait on each host with their imports done; None: HVD_SPARES if set
    slot_failures: int | None = None  # failures after which a slot is left out; None: HVD_SLOT_FAILURES
    host_failures: int | None = None  # left-out slots with which their host is left out; None: HVD_HOST_FAILURES
    hang_s: float | None = None  # longest wait of ranks in a reset for a missing one; None: HVD_HANG_TIMEOUT
    by_engine: bool = False  # the job's engine starts the processes, instead of script and hosts

    def __post_init__(self) -> None:
        for holds, problem in (
            (bool(self.script) and bool(self.hosts), "a host discovery script and hosts both name hosts: keep one"),
            (
                not (self.script or self.hosts or self.by_engine),
                "nothing says which hosts there are: give a script or hosts",
            ),
            (self.min_np > self.np, f"min_np={self.min_np} is above np={self.np}, but is the least of ranks"),
            (
                self.max_np is not None and self.max_np < self.np,
                f"max_np={self.max_np} is below np={self.np}, but is the most of ranks",
            ),
        ):
            if holds:
                raise ConfigError(f"{problem}.")
        if self.cooldown_s is not None:
            _check_cooldown(*self.cooldown_s)
        slots = sum(host.slots for host in self.hosts)
        if self.hosts and slots < self.np:
            raise ConfigError(
                f"np={self.np} ranks do not fit on {plural(slots, 'slot')}: give the hosts more, or lower np."
            )


def _check_cooldown(least: int, most: int) -> None:
    low, high = COOLDOWN_S
    if least < low or most > high or least > most:
        raise ConfigError(
            f"the cooldown range {least} {most} cannot be used: two whole numbers of seconds from {low} to {high}, the "
            "lower first."
        )


def sizes(np: int | None, least: int | None, most: int | None, hosts: Sequence[Host]) -> tuple[int, int]:
    """Return the number of ranks to start and the least with which the job continues; missing values are derived.

    >>> sizes(None, 2, None, [])
    (2, 2)

    Raises
    ------
    ConfigError
        They cannot be derived.
    """
    slots = sum(host.slots for host in hosts)
    start = np or min(slots, most or slots) or least
    if not start:
        raise ConfigError("an elastic job needs np: the number of slots that must be available before it starts.")
    return start, least or start
