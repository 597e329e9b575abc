"""Flags of elastic jobs: one row per flag, with its key in the section ``elastic`` of the configuration file.

    hvdrun -np 4 --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh python train.py

First Horovod's flags, under both of their names, then, starting with --max-restarts, those that Horovod does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.elastic.options import INTERVAL_S, ElasticOptions, sizes
from hvd_kernel.launch.elastic.schedulers import KINDS
from hvd_kernel.launch.placement import job_hosts
from hvd_kernel.settings.setting import Check, anything, number, whole

SECTION = "elastic"
"""Of the configuration file."""
_TIMEOUT = ("HVD_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT")


@dataclass(frozen=True)
class ElasticFlag:
    """One row; ``nargs``: the number of its values, each of which is checked."""

    key: str
    flags: tuple[str, ...]
    check: Check
    metavar: str
    help: str
    nargs: int = 1
    section: str = SECTION

    @property
    def dest(self) -> str:
        """Return its name among the parsed flags."""
        return f"{SECTION}.{self.key}"

    def value(self, text: str) -> str:
        """Return the checked values, separated by blanks.

        Raises
        ------
        ValueError
            Describing a valid value.
        """
        if self.nargs == 1:
            return self.check(text)
        parts = text.strip("[] ").replace(",", " ").split()
        if len(parts) != self.nargs:
            raise ValueError(f"{self.nargs} numbers, as 10 100")
        return " ".join(self.check(part) for part in parts)

    def argument(self, text: str) -> str:
        """Check a value for argparse."""
        try:
            return self.check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used: it must be {error}") from None


FLAGS = (
    ElasticFlag(
        "min_np",
        ("--min-np", "--min-num-proc"),
        whole(1),
        "N",
        "least number of ranks; with fewer slots the job waits for more (default: -np)",
    ),
    ElasticFlag(
        "max_np",
        ("--max-np", "--max-num-proc"),
        whole(1),
        "N",
        "most ranks (default: all available slots)",
    ),
    ElasticFlag(
        "host_discovery_script",
        ("--host-discovery-script",),
        anything,
        "PROGRAM",
        "prints the current hosts, lines `host` or `host:slots`; it is run repeatedly. Or "
        + ", ".join(kind + operand for kind, operand in KINDS.items()),
    ),
    ElasticFlag(
        "elastic_timeout",
        ("--elastic-timeout",),
        number(0.0, open_end=True),
        "S",
        "longest wait for slots, in seconds (default: HOROVOD_ELASTIC_TIMEOUT, 600)",
    ),
    ElasticFlag(
        "reset_limit",
        ("--reset-limit",),
        whole(0),
        "N",
        "largest number of resets (default: no limit)",
    ),
    ElasticFlag(
        "max_restarts",
        ("--max-restarts",),
        whole(0),
        "N",
        "processes that may be started to replace failed ones (default: no limit, but three failures per slot)",
    ),
    ElasticFlag(
        "blacklist_cooldown_range",
        ("--blacklist-cooldown-range",),
        whole(0),
        "S",
        "shortest and longest time in seconds for which a failed host or slot is not used (default: forever)",
        nargs=2,
    ),
    ElasticFlag(
        "discovery_interval",
        ("--discovery-interval",),
        number(0.0, open_end=True),
        "S",
        f"seconds from one run of the discovery script to the next (default: {INTERVAL_S:g})",
    ),
    ElasticFlag(
        "slot_failures",
        ("--slot-failures",),
        whole(1),
        "N",
        "failures in a slot after which it is left out (default: HVD_SLOT_FAILURES, 3; with a cooldown range 1)",
    ),
    ElasticFlag(
        "host_failures",
        ("--host-failures",),
        whole(1),
        "N",
        "slots of a host that are left out, after which the whole host is (default: HVD_HOST_FAILURES, 2)",
    ),
    ElasticFlag(
        "hang_timeout",
        ("--hang-timeout",),
        number(0.0, open_end=True),
        "S",
        "seconds that the others wait in a reset for a rank that does not come, until it is replaced (default: "
        "HVD_HANG_TIMEOUT, 120)",
    ),
    ElasticFlag(
        "spares",
        ("--spares",),
        whole(0, 16),
        "N",
        "processes that wait on each host, their imports done, to take a failed rank's place at once, for programs of "
        "Python's (default: HVD_SPARES where it is set, else 0)",
    ),
)
STARTS = ("min_np", "host_discovery_script")
"""A job is elastic if one of these is given, as with horovodrun."""


def add(group: Any) -> None:
    """Add the flags to a parser's group."""
    for row in FLAGS:
        nargs = {} if row.nargs == 1 else {"nargs": row.nargs}
        group.add_argument(
            *row.flags,
            dest=row.dest,
            default=argparse.SUPPRESS,
            type=row.argument,
            metavar=row.metavar,
            help=row.help.replace("%", "%%"),
            **nargs,
        )


def flags_with_values(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the flags that have values."""
    return [row.flags[-1] for row in FLAGS if row.dest in values]


def options(values: Mapping[str, Any], others: Mapping[str, Any]) -> ElasticOptions | None:
    """Return the options of an elastic job; None: the number of ranks is fixed.

    Parameters
    ----------
    values
        Values by ``dest``: text, or a list of it.
    others
        The other flags: np, hosts, hostfile, slots, and those that choose a launcher.

    Raises
    ------
    UsageError
        The chosen launcher cannot start elastic jobs.
    ConfigError
        Two values contradict each other.
    """
    by_key = {row.key: values[row.dest] for row in FLAGS if row.dest in values}
    if not by_key.keys() & set(STARTS):
        return None
    for name in ("mpi", "jsrun"):
        if others.get(name):
            raise UsageError(
                f"hvdrun: --{name} starts a job that keeps its size: leave it out beside "
                f"{', '.join(flags_with_values(values))}, and hvdrun's own agents start the ranks"
            )
    script = str(by_key.get("host_discovery_script", ""))
    least, most = _whole(by_key.get("min_np")), _whole(by_key.get("max_np"))
    np = others.get("np")
    has_hosts = others.get("hosts") or others.get("hostfile") or not script
    size = np or most or least or 1
    hosts = tuple(job_hosts(others.get("hosts"), others.get("hostfile"), size)) if has_hosts else ()
    start, fewest = sizes(np, least, most, hosts)
    return ElasticOptions(
        np=start,
        min_np=fewest,
        max_np=most,
        hosts=hosts,
        script=script,
        slots=others.get("slots"),
        timeout_s=float(by_key["elastic_timeout"]) if "elastic_timeout" in by_key else None,
        reset_limit=_whole(by_key.get("reset_limit")),
        max_restarts=_whole(by_key.get("max_restarts")),
        cooldown_s=_pair(by_key.get("blacklist_cooldown_range")),
        interval_s=float(by_key.get("discovery_interval", INTERVAL_S)),
        spares=_whole(by_key.get("spares")),
        slot_failures=_whole(by_key.get("slot_failures")),
        host_failures=_whole(by_key.get("host_failures")),
        hang_s=float(by_key["hang_timeout"]) if "hang_timeout" in by_key else None,
    )


def ignored(values: Mapping[str, Any]) -> list[str]:
    """Return a warning if flags of elastic jobs are given without one that makes a job elastic."""
    if any(f"{SECTION}.{key}" in values for key in STARTS) or not flags_with_values(values):
        return []
    flags = ", ".join(flags_with_values(values))
    return [f"{flags} are ignored: for elastic jobs, with --min-np or --host-discovery-script"]


def variables(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of flags that affect the ranks too."""
    timeout = values.get(f"{SECTION}.elastic_timeout")
    return {_TIMEOUT[0]: "", _TIMEOUT[1]: str(timeout)} if timeout else {}


def _whole(text: object) -> int | None:
    return None if text is None else int(str(text))


def _pair(values: Sequence[str] | str | None) -> tuple[int, int] | None:
    if values is None:
        return None
    least, most = values.split() if isinstance(values, str) else values
    return int(least), int(most)
