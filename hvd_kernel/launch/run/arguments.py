"""Arguments of ``run``: Horovod's options, each used or refused with the reason."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.launch.elastic.job.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.placement import named, spelled
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.mpi.network import is_far
from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.network import addresses

_COUNTS = {"slot_failures": 1, "host_failures": 1, "spares": 0}
"""Of a job whose size may change, and the least that each may be."""
_ELASTIC = (
    *("max_num_proc", "max_np", "reset_limit", "cooldown_range", "elastic_timeout", "max_restarts", "hang_timeout"),
    *_COUNTS,
)
"""What means nothing without min_num_proc or host_discovery_script."""
_FRESH_ONLY = (
    "env",
    "executable",
    "output_filename",
    "use_gloo",
    "use_mpi",
    "ssh_port",
    "ssh_identity_file",
    "network_interface",
    "network_interfaces",
)
"""What is settled when a process starts, so that ranks that live already cannot honour it."""


@dataclass(frozen=True)
class Asked:
    """The options of one call, checked. ``given`` holds those of _FRESH_ONLY that were said."""

    np: int
    hosts: str | None
    hostfile: str | None
    mpi_args: str | None
    start_timeout: float | None
    verbose: int
    given: Mapping[str, Any]
    reuse: bool | None
    elastic: ElasticOptions | None = None

    def spec(self, running: ClusterSpec | None = None) -> ClusterSpec:
        """Return the cluster that is wanted; what was not said is as in the running one."""
        base = running or ClusterSpec(self.np)
        patience = base.start_timeout_s if running or self.start_timeout is None else self.start_timeout
        elsewhere = self.hosts or self.hostfile
        hosts, hostfile = (self.hosts, self.hostfile) if elsewhere else (base.hosts, base.hostfile)
        mpi_args = tuple(shlex.split(self.mpi_args)) if self.mpi_args else base.mpi_args
        on = "" if elsewhere or self.mpi_args else base.on
        return ClusterSpec(self.np, hosts or "", hostfile or "", mpi_args, patience, base.gpus, base.mps, on=on)

    @property
    def far(self) -> bool:
        """Whether a rank may run on another host."""
        return is_far(self.spec()) or bool(self.elastic and self.elastic.script)

    @property
    def job(self) -> Job:
        """The ranks as fresh processes; the command is the interpreter alone."""
        given = self.given
        patience = {} if self.start_timeout is None else {"HVD_START_TIMEOUT": f"{self.start_timeout:g}"}
        job = Job(
            command=[str(given.get("executable") or sys.executable)],
            np=self.np,
            hosts=self.hosts,
            hostfile=self.hostfile,
            env=patience | dict(given.get("env") or {}),
            ssh_port=given.get("ssh_port"),
            ssh_identity_file=given.get("ssh_identity_file"),
            network_interface=one_interface(given.get("network_interface") or given.get("network_interfaces") or ""),
            output_filename=given.get("output_filename"),
            use_mpi=bool(given.get("use_mpi") or self.mpi_args),
            mpi_args=tuple(shlex.split(self.mpi_args or "")),
        )
        return job if self.start_timeout is None else replace(job, start_timeout_s=self.start_timeout)


def checked(options: Mapping[str, Any]) -> Asked:
    """Read the arguments of ``run`` by name.

    Raises
    ------
    ConfigError
        An option cannot be honoured, or two contradict each other; the message names it and the remedy.
    """
    _refuse(options)
    np = _count("np", options["num_proc"] if options["np"] is None else options["np"], "ranks")
    hosts, hostfile = _where(options)
    elastic = _elastic(options, np, hosts, hostfile)
    return Asked(
        np=np,
        hosts=hosts,
        hostfile=hostfile,
        mpi_args=options["mpi_args"],
        start_timeout=options["start_timeout"],
        verbose=int(options["verbose"] or 0),
        given={name: options[name] for name in _FRESH_ONLY if options[name] not in (None, False)},
        reuse=options["reuse"],
        elastic=elastic,
    )


def _elastic(options: Mapping[str, Any], np: int, hosts: str | None, hostfile: str | None) -> ElasticOptions | None:
    """Return how the number of ranks may change; None: it may not."""
    least = _either(options, "min_num_proc", "min_np")
    most = _either(options, "max_num_proc", "max_np")
    script = options["host_discovery_script"]
    if least is None and not script:
        idle = [name for name in _ELASTIC if options[name] is not None]
        if idle:
            told = f"run({', '.join(idle)}) is left out: for jobs whose size may change, with min_num_proc"
            warnings.warn(told, stacklevel=4)
        return None
    pair = options["cooldown_range"]
    if pair is not None and (len(pair) != 2 or not all(isinstance(each, int) for each in pair)):  # noqa: PLR2004
        raise ConfigError(f"run(cooldown_range={pair!r}) cannot be used: give two whole numbers of seconds.")
    for name, minimum in _COUNTS.items():
        value = options[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise ConfigError(f"run({name}={value!r}) cannot be used: give a whole number, {minimum} or more.")
    start = max(np, least or 1)
    known = tuple(named(hosts, hostfile, start)) if hosts or hostfile or not script else ()
    return ElasticOptions(
        np=start,
        min_np=start if least is None else least,
        max_np=most,
        hosts=known,
        script=script or "",
        slots=options["slots"],
        timeout_s=options["elastic_timeout"],
        reset_limit=options["reset_limit"],
        max_restarts=options["max_restarts"],
        cooldown_s=None if pair is None else (pair[0], pair[1]),
        spares=options["spares"],
        slot_failures=options["slot_failures"],
        host_failures=options["host_failures"],
        hang_s=options["hang_timeout"],
    )


def _either(options: Mapping[str, Any], new: str, old: str) -> int | None:
    """Return a number of ranks that has two names."""
    name = new if options[new] is not None else old
    return None if options[name] is None else _count(name, options[name], "ranks")


def _where(options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return hosts and hostfile; with slots all hosts, each with its own."""
    hosts, hostfile, slots = options["hosts"], options["hostfile"], options["slots"]
    if slots is None:
        return hosts, hostfile
    _count("slots", slots, "slots")
    if not (hosts or hostfile or options["host_discovery_script"]):
        told = f"run(slots={slots}) is left out: it is for hosts that are given without slots"
        warnings.warn(told, stacklevel=4)
    return spelled(hosts, hostfile, slots)


def _count(name: str, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"run({name}={value!r}) cannot be used: give a number of {what}, 1 or more, e.g. {name}=4.")
    return value


def one_interface(interfaces: str | Sequence[str]) -> str:
    """Return the interface that is named, of several the first that is here, with a warning; empty: none is named."""
    names = entries(interfaces) if isinstance(interfaces, str) else list(interfaces)
    if len(names) < 2:  # noqa: PLR2004 - several
        return names[0] if names else ""
    here = addresses()
    chosen = next((name for name in names if name in here), "")
    if not chosen:
        raise ConfigError(
            f"run(network_interfaces={interfaces!r}) cannot be used: this host has {', '.join(here)}. Name one."
        )
    warnings.warn(f"run(network_interfaces={interfaces!r}): ranks use one of them, {chosen}", stacklevel=4)
    return chosen


def need_fresh(asked: Asked) -> str:
    """Say which option only fresh processes can honour; empty: none."""
    return next(iter(asked.given), "min_num_proc" if asked.elastic else "")


def refuse_reuse(asked: Asked, reason: str) -> None:
    """Raise UsageError where the ranks of the notebook were asked for, but cannot be had."""
    if asked.reuse:
        raise UsageError(f"run(reuse=True) is not possible: {reason}. Leave reuse out.")


def _refuse(options: Mapping[str, Any]) -> None:
    for one, other, reason in _CONTRADICTIONS:
        if options[one] and options[other]:
            raise ConfigError(f"run({one}=..., {other}=...): {reason}. Keep one of them.")


_CONTRADICTIONS = (
    ("hosts", "hostfile", "they say the same thing"),
    ("use_gloo", "use_mpi", "ranks are started by this package or by MPI"),
    ("use_gloo", "mpi_args", "they are for MPI, which use_gloo leaves out"),
    ("network_interface", "network_interfaces", "they say the same thing"),
    *((new, old, "they say the same thing") for new, old in (("min_num_proc", "min_np"), ("max_num_proc", "max_np"))),
    *(
        (name, how, "jobs that MPI starts keep their size")
        for name in ("min_num_proc", "min_np", "host_discovery_script")
        for how in ("use_mpi", "mpi_args")
    ),
)
