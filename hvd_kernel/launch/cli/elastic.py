"""Flags of elastic jobs: one row for each, with its key in the section ``elastic`` of the configuration file.

    hvdrun -np 4 --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh python train.py

Horovod's flags, under both of their names, and those that its jobs do not have, from --max-restarts on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.elastic.discovery.kinds import KINDS
from hvd_kernel.launch.elastic.job.options import INTERVAL_S, ElasticOptions, sizes
from hvd_kernel.launch.placement import named
from hvd_kernel.settings.checks import Check, anything, number, whole

SECTION = "elastic"
"""Of the configuration file."""
_TIMEOUT = ("HVD_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT")


@dataclass(frozen=True)
class ElasticFlag:
    """One row; ``nargs``: how many values it takes, each of them checked."""

    key: str
    flags: tuple[str, ...]
    check: Check
    metavar: str
    help: str
    nargs: int = 1
    section: str = SECTION

    @property
    def dest(self) -> str:
        """Its name among the parsed flags."""
        return f"{SECTION}.{self.key}"

    def value(self, text: str) -> str:
        """Return the values, one blank between two.

        Raises
        ------
        ValueError
            Saying what is wanted.
        """
        if self.nargs == 1:
            return self.check(text)
        parts = text.strip("[] ").replace(",", " ").split()
        if len(parts) != self.nargs:
            raise ValueError(f"{self.nargs} numbers, as 10 100")
        return " ".join(self.check(part) for part in parts)

    def argument(self, text: str) -> str:
        """As ``check``, for argparse."""
        try:
            return self.check(text)
        except ValueError as wanted:
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used: it must be {wanted}") from None


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
        "shortest and longest time in seconds for which a failed host or slot is not used (default: for ever)",
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
"""A job is elastic where one of these is given, as for horovodrun."""


def add(group: Any) -> None:
    """Add the flags to a parser's group."""
    for each in FLAGS:
        more = {} if each.nargs == 1 else {"nargs": each.nargs}
        group.add_argument(
            *each.flags,
            dest=each.dest,
            default=argparse.SUPPRESS,
            type=each.argument,
            metavar=each.metavar,
            help=each.help.replace("%", "%%"),
            **more,
        )


def spelled(found: Mapping[str, Any]) -> list[str]:
    """Return the flags whose values were given."""
    return [each.flags[-1] for each in FLAGS if each.dest in found]


def options(found: Mapping[str, Any], given: Mapping[str, Any]) -> ElasticOptions | None:
    """Return what the values ask for; None: the job keeps its size.

    Parameters
    ----------
    found
        Values by ``dest``: text, or a list of it.
    given
        The other flags: np, hosts, hostfile, slots; what starts the ranks.

    Raises
    ------
    UsageError
        A launcher was asked for whose jobs keep their size.
    ConfigError
        Two values contradict each other.
    """
    said = {each.key: found[each.dest] for each in FLAGS if each.dest in found}
    if not said.keys() & set(STARTS):
        return None
    for name in ("mpi", "jsrun"):
        if given.get(name):
            raise UsageError(
                f"hvdrun: --{name} starts a job that keeps its size: leave it out beside {', '.join(spelled(found))}, "
                "and hvdrun's own agents start the ranks"
            )
    script = str(said.get("host_discovery_script", ""))
    least, most = _whole(said.get("min_np")), _whole(said.get("max_np"))
    np = given.get("np")
    here = given.get("hosts") or given.get("hostfile") or not script
    hosts = tuple(named(given.get("hosts"), given.get("hostfile"), np or most or least or 1)) if here else ()
    start, fewest = sizes(np, least, most, hosts)
    return ElasticOptions(
        np=start,
        min_np=fewest,
        max_np=most,
        hosts=hosts,
        script=script,
        slots=given.get("slots"),
        timeout_s=float(said["elastic_timeout"]) if "elastic_timeout" in said else None,
        reset_limit=_whole(said.get("reset_limit")),
        max_restarts=_whole(said.get("max_restarts")),
        cooldown_s=_pair(said.get("blacklist_cooldown_range")),
        interval_s=float(said.get("discovery_interval", INTERVAL_S)),
        spares=_whole(said.get("spares")),
        slot_failures=_whole(said.get("slot_failures")),
        host_failures=_whole(said.get("host_failures")),
        hang_s=float(said["hang_timeout"]) if "hang_timeout" in said else None,
    )


def left_out(found: Mapping[str, Any]) -> list[str]:
    """Return a sentence where flags of elastic jobs stand beside none that makes a job elastic."""
    if any(f"{SECTION}.{key}" in found for key in STARTS) or not spelled(found):
        return []
    return [f"{', '.join(spelled(found))} are ignored: for elastic jobs, with --min-np or --host-discovery-script"]


def variables(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of flags that mean something to the ranks too."""
    timeout = found.get(f"{SECTION}.elastic_timeout")
    return {_TIMEOUT[0]: "", _TIMEOUT[1]: str(timeout)} if timeout else {}


def _whole(text: object) -> int | None:
    return None if text is None else int(str(text))


def _pair(values: Sequence[str] | str | None) -> tuple[int, int] | None:
    if values is None:
        return None
    least, most = values.split() if isinstance(values, str) else values
    return int(least), int(most)
