"""What can be set from outside: the table of settings, and the shape of a cluster. A shared leaf.

Words.
  setting    one key that the core understands, with the environment variables that set it
  HVD_*      our own variable; it wins over Horovod's where both are set
  HOROVOD_*  Horovod's variable of the same meaning, so that existing job scripts keep working
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.errors import ConfigError

TRANSPORTS = ("auto", "shm", "tcp")


def _choice(text: str) -> str:
    if text not in TRANSPORTS:
        raise ValueError(f"one of {', '.join(TRANSPORTS)}")
    return text


def _word(text: str) -> str:
    if not text or any(c.isspace() for c in text):
        raise ValueError("a name without blanks")
    return text


def _whole(low: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not text.strip().isdecimal() or int(text) < low:
            raise ValueError(f"a whole number, at least {low}")
        return str(int(text))

    return check


def _number(low: float, *, open_end: bool) -> Callable[[str], str]:
    wanted = f"a number {'above' if open_end else 'not below'} {low:g}"

    def check(text: str) -> str:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not math.isfinite(value) or value < low or (open_end and value == low):
            raise ValueError(wanted)
        return repr(value)

    return check


@dataclass(frozen=True)
class Setting:
    """One row: the core's key, the variables that set it (first one set wins), its check, and what it means."""

    key: str
    variables: tuple[str, ...]
    check: Callable[[str], str]
    default: str
    doc: str


SETTINGS = (
    Setting("transport", ("HVD_TRANSPORT",), _choice, "auto", "how ranks of one host reach each other: auto, shm, tcp"),
    Setting(
        "tcp_interface",
        ("HVD_TCP_INTERFACE", "HOROVOD_GLOO_IFACE"),
        _word,
        "",
        "network interface that TCP links listen on; empty: the one that leads to rank 0",
    ),
    Setting("slot_bytes", ("HVD_SLOT_BYTES",), _whole(64), "", "bytes of one slot of a link; empty: the core's choice"),
    Setting("slots", ("HVD_SLOTS",), _whole(2), "", "slots of one link; empty: the core's choice"),
    Setting(
        "start_timeout_s",
        ("HVD_START_TIMEOUT", "HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
        _number(0.0, open_end=True),
        "30",
        "seconds that init() waits for all ranks to appear",
    ),
    Setting(
        "fusion_threshold",
        ("HVD_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        _whole(0),
        "134217728",
        "bytes that may travel as one fused operation; 0: never fuse",
    ),
    Setting(
        "cycle_time_ms",
        ("HVD_CYCLE_TIME", "HOROVOD_CYCLE_TIME"),
        _number(0.0, open_end=False),
        "0",
        "longest time in milliseconds that a small tensor waits for company",
    ),
    Setting("trace_capacity", ("HVD_TRACE_CAPACITY",), _whole(1), "", "records kept in the trace ring"),
)


def engine_options(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Options for the core: what the environment sets, checked. What it does not set is the core's to choose.

    Raises
    ------
    ConfigError
        A variable has a value that cannot be used; the message names the variable, the value and what is wanted.
    """
    values = os.environ if env is None else env
    found: dict[str, str] = {}
    for setting in SETTINGS:
        variable = next((v for v in setting.variables if values.get(v)), None)
        if variable is None:
            continue
        try:
            found[setting.key] = setting.check(values[variable])
        except ValueError as wanted:
            raise ConfigError(
                f"{variable}={values[variable]!r} cannot be used: it must be {wanted} ({setting.doc})."
            ) from None
    return found


def start_timeout(env: Mapping[str, str] | None = None) -> float:
    """Seconds that ``init()`` waits for the other ranks."""
    default = next(s.default for s in SETTINGS if s.key == "start_timeout_s")
    return float(engine_options(env).get("start_timeout_s", default))


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster a notebook asks for: how many ranks, where, and how MPI starts them."""

    n: int
    hosts: str = ""  # "a:2,b:2"; empty: this machine
    hostfile: str = ""  # path of a file of lines "host slots=N"
    mpi_args: tuple[str, ...] = ()  # given to mpiexec as they are
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"a cluster of {self.n} ranks cannot be started: ask for 1 or more, e.g. -np 4.")
        if self.hosts and self.hostfile:
            raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
        if self.start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s={self.start_timeout_s:g} must be above 0 seconds.")
