"""``hvd_kernel.run``: call a function on many ranks, with Horovod's signature and results.

Terms.
  new     processes that are started for this call and exit with it
  reused  the ranks of the notebook, which ``%%hvdrun`` uses too and which stay: a second call takes milliseconds
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.elastic.discovery import HostDiscovery
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.placement import job_hosts, with_slots
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_notebook, in_processes
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.network import addresses


def run(  # noqa: PLR0917 - Horovod's signature
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | HostDiscovery | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    reuse: bool | None = None,
    elastic_timeout: float | None = None,
    max_restarts: int | None = None,
    spares: int | None = None,
    slot_failures: int | None = None,
    host_failures: int | None = None,
    hang_timeout: float | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on np ranks and return what it returned, in rank order.

    The function may come from a notebook, or from a script's own file without an ``if __name__ == "__main__"``. In a
    notebook it runs on the ranks of ``%%hvdrun`` if their number matches or none exist yet, else on new ones.

    Parameters
    ----------
    func, args, kwargs
        The function to call on every rank; it calls ``hvd.init()`` itself, like a script.
    num_proc, np
        Number of ranks.
    hosts, hostfile
        Hosts of the ranks: "h1:4,h2:4", or a file of lines "host slots=N"; by default this machine.
    slots
        Slots of hosts without a number (1): ``hosts="h1,h2", slots=4``. Without hosts or a script: a warning.
    start_timeout
        Seconds for which a rank waits for the others.
    ssh_port, ssh_identity_file
        Options of ssh to other hosts.
    disable_cache
        Accepted; nothing is cached here.
    output_filename
        Folder for the output of each rank.
    verbose
        Log how the ranks are started.
    use_gloo, use_mpi, mpi_args
        Whether this package or MPI starts the ranks, and arguments for MPI.
    network_interface, network_interfaces
        Network interface on which the ranks listen.
    executable
        Python interpreter of the ranks.
    min_num_proc, max_num_proc, min_np, max_np
        Limits between which the number of ranks may change while they run: a function decorated with
        ``hvd.elastic.run`` survives the failure of ranks and continues with new ones. The results of ranks 0 to
        ``min_num_proc`` - 1 are returned.
    host_discovery_script
        Instead of ``hosts``: a program that prints the available hosts, lines ``host:slots``, or an object with
        ``find_available_hosts_and_slots() -> {host: slots}``.
    reset_limit, cooldown_range, elastic_timeout, max_restarts
        Largest number of resets; shortest and longest time in seconds for which a failed host is not used; longest
        wait for slots, in seconds; number of processes that may be started to replace failed ones.
    slot_failures, host_failures, hang_timeout
        Number of failures after which a slot is left out, and of such slots after which their host is; seconds for
        which the others wait in a reset for a missing rank, until it is replaced.
    spares
        Processes that wait on each host, with their imports done, to replace a rank that fails.
    env
        Variables of the ranks in addition to this process's.
    reuse
        True: use the notebook's ranks or raise an error; False: start new ones.

    Raises
    ------
    RankFailed
        The function raised; the message names the rank and holds its traceback, ``__cause__`` is its exception.
    RankDied
        A rank exited before its function returned.
    ConfigError
        An option cannot be honoured.
    UsageError
        This process is a rank itself.

    Examples
    --------
    >>> hvd_kernel.run(pow, (2, 10), np=2)
    [1024, 1024]
    """
    options = parse_options(dict(locals()))
    if not callable(func):
        raise TypeError(f"run() calls a function on the ranks, but got {func!r}.")
    _refuse_on_a_rank()
    same_python = options.new_only.get("executable") in {None, sys.executable}
    call = pack_call(func, args, kwargs or {}, sys.path if same_python else ())
    shell = _notebook(options)
    if shell is not None:
        values = in_notebook(shell, call, options.spec, options.np, reuse=options.reuse is True)
        if values is not None:
            return values
    if options.verbose:
        place = options.hosts or options.hostfile or "on this machine"
        sys.stderr.write(f"run: starting {plural(options.np, 'new rank')}, {place}\n")
    values = in_processes(call, options.job, elastic=options.elastic)
    return values if options.elastic is None else values[: options.elastic.min_np]


def _notebook(options: RunOptions) -> Any:
    """Return the shell whose ranks are to be used, or None for new processes."""
    if options.reuse is False:
        return None
    if name := next(iter(options.new_only), "min_num_proc" if options.elastic else ""):
        _refuse_reuse(options, f"{name} is fixed when a rank starts")
        return None
    shell = _ipython_shell()
    if shell is None:
        _refuse_reuse(options, "this is not a notebook, and nothing else keeps ranks")
    return shell


def _refuse_reuse(options: RunOptions, reason: str) -> None:
    """Raise UsageError if the user requires the ranks of the notebook, which cannot be used."""
    if options.reuse:
        raise UsageError(f"run(reuse=True) is not possible: {reason}. Leave reuse out.")


def _ipython_shell() -> Any:
    """Return the shell of this process's notebook or rank, None if it has none. IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _refuse_on_a_rank() -> None:
    session = sys.modules.get("hvd_kernel.core.session")
    in_notebook_rank = type(_ipython_shell()).__module__.startswith("hvd_kernel.worker.")
    if in_notebook_rank or (session is not None and session.is_initialized() and session.size() > 1):
        raise UsageError("run() starts ranks, but this process is one itself: call it in the notebook or the script.")


# Arguments: Horovod's options, each used or refused with the reason

_COUNTS = {"slot_failures": 1, "host_failures": 1, "spares": 0}
"""Counts that only elastic jobs have -> the smallest value."""
_ELASTIC = (
    *("max_num_proc", "max_np", "reset_limit", "cooldown_range", "elastic_timeout", "max_restarts", "hang_timeout"),
    *_COUNTS,
)
"""Options without effect unless min_num_proc or host_discovery_script is given."""
_NEW_ONLY = (
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
"""Options that are fixed when a process starts, so that existing ranks cannot honour them."""


@dataclass(frozen=True)
class RunOptions:
    """The checked options of one call. ``new_only``: the given ones of _NEW_ONLY."""

    np: int
    hosts: str | None
    hostfile: str | None
    mpi_args: str | None
    start_timeout: float | None
    verbose: int
    new_only: Mapping[str, Any]
    reuse: bool | None
    elastic: ElasticOptions | None = None

    def spec(self, running: ClusterSpec | None = None) -> ClusterSpec:
        """Return the required cluster; options that were not given are those of the running one."""
        base = running or ClusterSpec(self.np)
        patience = base.start_timeout_s if running or self.start_timeout is None else self.start_timeout
        elsewhere = self.hosts or self.hostfile
        hosts, hostfile = (self.hosts, self.hostfile) if elsewhere else (base.hosts, base.hostfile)
        mpi_args = tuple(shlex.split(self.mpi_args)) if self.mpi_args else base.mpi_args
        on = "" if elsewhere or self.mpi_args else base.on
        return ClusterSpec(self.np, hosts or "", hostfile or "", mpi_args, patience, base.gpus, base.mps, on=on)

    @property
    def job(self) -> Job:
        """Return the job of new ranks; its command is the interpreter alone."""
        options = self.new_only
        timeout = {} if self.start_timeout is None else {"HVD_START_TIMEOUT": f"{self.start_timeout:g}"}
        job = Job(
            command=[str(options.get("executable") or sys.executable)],
            np=self.np,
            hosts=self.hosts,
            hostfile=self.hostfile,
            env=timeout | dict(options.get("env") or {}),
            ssh_port=options.get("ssh_port"),
            ssh_identity_file=options.get("ssh_identity_file"),
            network_interface=one_interface(
                options.get("network_interface") or options.get("network_interfaces") or ""
            ),
            output_filename=options.get("output_filename"),
            use_mpi=bool(options.get("use_mpi") or self.mpi_args),
            mpi_args=tuple(shlex.split(self.mpi_args or "")),
        )
        return job if self.start_timeout is None else replace(job, start_timeout_s=self.start_timeout)


def parse_options(options: Mapping[str, Any]) -> RunOptions:
    """Check the arguments of ``run``, passed by name.

    Raises
    ------
    ConfigError
        An option cannot be honoured, or two contradict each other; the message names it and the remedy.
    """
    _check_contradictions(options)
    np = _count("np", options["num_proc"] if options["np"] is None else options["np"], "ranks")
    hosts, hostfile = _hosts(options)
    elastic = _elastic(options, np, hosts, hostfile)
    return RunOptions(
        np=np,
        hosts=hosts,
        hostfile=hostfile,
        mpi_args=options["mpi_args"],
        start_timeout=options["start_timeout"],
        verbose=int(options["verbose"] or 0),
        new_only={name: options[name] for name in _NEW_ONLY if options[name] not in (None, False)},
        reuse=options["reuse"],
        elastic=elastic,
    )


def _elastic(options: Mapping[str, Any], np: int, hosts: str | None, hostfile: str | None) -> ElasticOptions | None:
    """Return the options of an elastic job; None: the number of ranks is fixed."""
    least = _either(options, "min_num_proc", "min_np")
    most = _either(options, "max_num_proc", "max_np")
    script = options["host_discovery_script"]
    if least is None and not script:
        unused = [name for name in _ELASTIC if options[name] is not None]
        if unused:
            text = f"run({', '.join(unused)}) is left out: for jobs whose size may change, with min_num_proc"
            warnings.warn(text, stacklevel=4)
        return None
    pair = options["cooldown_range"]
    if pair is not None and (len(pair) != 2 or not all(isinstance(limit, int) for limit in pair)):  # noqa: PLR2004
        raise ConfigError(f"run(cooldown_range={pair!r}) cannot be used: give two whole numbers of seconds.")
    for name, minimum in _COUNTS.items():
        value = options[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise ConfigError(f"run({name}={value!r}) cannot be used: give a whole number, {minimum} or more.")
    start = max(np, least or 1)
    host_list = tuple(job_hosts(hosts, hostfile, start)) if hosts or hostfile or not script else ()
    return ElasticOptions(
        np=start,
        min_np=start if least is None else least,
        max_np=most,
        hosts=host_list,
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
    """Return a number of ranks that may be passed under two names."""
    name = new if options[new] is not None else old
    return None if options[name] is None else _count(name, options[name], "ranks")


def _hosts(options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return hosts and hostfile; with ``slots`` a list of all hosts with their slots."""
    hosts, hostfile, slots = options["hosts"], options["hostfile"], options["slots"]
    if slots is None:
        return hosts, hostfile
    _count("slots", slots, "slots")
    if not (hosts or hostfile or options["host_discovery_script"]):
        text = f"run(slots={slots}) is left out: it is for hosts that are given without slots"
        warnings.warn(text, stacklevel=4)
    return with_slots(hosts, hostfile, slots)


def _count(name: str, value: Any, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"run({name}={value!r}) cannot be used: give a number of {unit}, 1 or more, e.g. {name}=4.")
    return value


def one_interface(interfaces: str | Sequence[str]) -> str:
    """Return the given interface, of several the first that exists, with a warning; empty if none is given."""
    names = entries(interfaces) if isinstance(interfaces, str) else list(interfaces)
    if len(names) < 2:  # noqa: PLR2004 - several
        return names[0] if names else ""
    existing = addresses()
    chosen = next((name for name in names if name in existing), "")
    if not chosen:
        raise ConfigError(
            f"run(network_interfaces={interfaces!r}) cannot be used: this host has {', '.join(existing)}. Name one."
        )
    warnings.warn(f"run(network_interfaces={interfaces!r}): ranks use one of them, {chosen}", stacklevel=4)
    return chosen


def _check_contradictions(options: Mapping[str, Any]) -> None:
    for name, other, reason in _CONTRADICTIONS:
        if options[name] and options[other]:
            raise ConfigError(f"run({name}=..., {other}=...): {reason}. Keep one of them.")


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
