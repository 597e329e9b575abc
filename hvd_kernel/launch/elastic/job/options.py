"""Options of an elastic job: how many ranks it may have, who says which hosts there are, and when it gives up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.polled import HostDiscovery
from hvd_kernel.launch.placement import Host

INTERVAL_S = 1.0
COOLDOWN_S = (1, 3600)
"""Least and most seconds of a cooldown, as Horovod has them."""


@dataclass(frozen=True)
class ElasticOptions:
    """Of one job. ``hosts`` or ``script`` says where ranks may run.

    Raises
    ------
    ConfigError
        Two of them contradict each other; the text names both in the words of the command line.
    """

    np: int  # slots that must be there before the first start
    min_np: int  # fewer than that: the ranks wait
    max_np: int | None = None  # more than that stay empty; None: all slots are used
    hosts: tuple[Host, ...] = ()
    script: str | HostDiscovery = ""
    slots: int | None = None  # of a host for which the script says none
    timeout_s: float | None = None  # longest wait for min_np slots; None: HOROVOD_ELASTIC_TIMEOUT
    reset_limit: int | None = None  # None: HVD_RESET_LIMIT
    max_restarts: int | None = None  # processes that may be started in the places of those that failed
    cooldown_s: tuple[int, int] | None = None  # None: a host that has been left out stays out
    interval_s: float = INTERVAL_S  # between the end of one run of the script and the next
    spares: int | None = None  # processes that wait on each host, their imports done; None: HVD_SPARES where it is set
    slot_failures: int | None = None  # a slot is left out after so many; None: HVD_SLOT_FAILURES
    host_failures: int | None = None  # a host is left out while so many of its slots are; None: HVD_HOST_FAILURES
    hang_s: float | None = None  # longest wait of ranks in a reset for one that does not come; None: HVD_HANG_TIMEOUT
    by_engine: bool = False  # instead of script and hosts: the processes that the job's engine brings

    def __post_init__(self) -> None:
        for holds, said in (
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
                raise ConfigError(f"{said}.")
        if self.cooldown_s is not None:
            _check_cooldown(*self.cooldown_s)
        slots = sum(host.slots for host in self.hosts)
        if self.hosts and slots < self.np:
            raise ConfigError(f"np={self.np} ranks do not fit on {slots} slot(s): give the hosts more, or lower np.")


def _check_cooldown(least: int, most: int) -> None:
    low, high = COOLDOWN_S
    if least < low or most > high or least > most:
        raise ConfigError(
            f"the cooldown range {least} {most} cannot be used: two whole numbers of seconds from {low} to {high}, the "
            "lower first."
        )


def sizes(np: int | None, least: int | None, most: int | None, hosts: Sequence[Host]) -> tuple[int, int]:
    """Return how many ranks start and how few may go on: what is not said follows from the rest.

    >>> sizes(None, 2, None, [])
    (2, 2)

    Raises
    ------
    ConfigError
        Nothing says it.
    """
    slots = sum(host.slots for host in hosts)
    start = np or min(slots, most or slots) or least
    if not start:
        raise ConfigError("an elastic job needs np: the number of slots that must be available before it starts.")
    return start, least or start
