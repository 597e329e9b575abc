"""The cluster that a magic's line requests: its ranks, hosts, devices and MPI options, from flags or a job's file.

With ``--on`` an engine other than mpiexec starts the ranks: its options, its start, its doctor.
"""

from __future__ import annotations

import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.magics.options import Options
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import SETTINGS, gpus, lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.launcher import RankSource
    from hvd_kernel.diagnosis.machine import CheckResult
    from hvd_kernel.jobs import JobSpec
    from hvd_kernel.launch.launchers.cluster_engine import Engine


_LINKS = ("pml", "btl")  # parameters of MPI's links, which the launcher sets


def default_cluster(choice: str = "") -> ClusterSpec:
    """Return the cluster of the settings, for ``--gpus`` of the line.

    Without a number of ranks it has one per slot of the hosts, else one per GPU, else one per core, at most four.

    Raises
    ------
    ConfigError
        A setting cannot be used.
    """
    hosts, hostfile, mpi_args, ranks = (
        lookup.value(name, os.environ) for name in ("HVD_HOSTS", "HVD_HOSTFILE", "HVD_MPI_ARGS", "HVD_RANKS")
    )
    if hosts and hostfile:
        raise ConfigError("HVD_HOSTS and HVD_HOSTFILE both say where the ranks run: keep one of them")
    n = (
        int(ranks)
        if ranks
        else slots(hosts)
        if hosts
        else slots_of_file(hostfile)
        if hostfile
        else default_ranks(choice)
    )
    return ClusterSpec(n=n, hosts=hosts, hostfile=hostfile, mpi_args=tuple(shlex.split(mpi_args)))


def default_ranks(choice: str = "") -> int:
    """Return the default number of ranks: one per GPU of ``--gpus``, else one per core, at most four."""
    devices = gpus.usable(choice or os.environ.get(gpus.CHOICE, "") or "auto", os.environ)
    return devices or min(4, len(os.sched_getaffinity(0)))


def slots(hosts: str) -> int:
    """Return the number of ranks in ``h1:4,h2``: 5.

    Raises
    ------
    UsageError
        The text after a host's colon is not a number.
    """
    from hvd_kernel.jobs.readers import hostfile  # noqa: PLC0415 - a kernel without jobs starts without their readers
    from hvd_kernel.jobs.spec import JobError  # noqa: PLC0415 - as above

    try:
        return sum(count for _, count in hostfile.host_list(hosts, f"-H {hosts}"))
    except JobError as error:
        raise UsageError(str(error)) from None


def slots_of_file(path: str) -> int:
    """Return the number of ranks in a hostfile of lines ``host slots=4``, ``host:4`` or ``host``.

    Raises
    ------
    UsageError
        The file cannot be read, names no host, or has slots that are no number; the message has the line.
    """
    from hvd_kernel.jobs.readers import hostfile  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.spec import JobError  # noqa: PLC0415 - as above

    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: it cannot be read: {error}") from None
    try:
        return sum(replica.slots for replica in hostfile.read(text, f"--hostfile {path}").replicas)
    except JobError as error:
        raise UsageError(str(error)) from None


def requested_cluster(options: Options, base: ClusterSpec) -> ClusterSpec:
    """Return the cluster that a line requests, with omitted options of the running one or of ``default_cluster``.

    Raises
    ------
    UsageError
        ``-H`` and ``--hostfile`` are both given, or one of them cannot be read; or as ``engine_spec``.
    """
    if engine_of(options, base):
        return engine_spec(options, base)
    if options.hosts and options.hostfile:
        raise UsageError("-H and --hostfile both say where the ranks run: keep one of them")
    if options.job or options.line:
        return _of_job(options, base)
    says_where = bool(options.hosts or options.hostfile)
    offered = slots(options.hosts) if options.hosts else slots_of_file(options.hostfile) if options.hostfile else base.n
    n = options.n or offered
    return ClusterSpec(
        n=n,
        hosts=options.hosts if says_where else base.hosts,
        hostfile=options.hostfile if says_where else base.hostfile,
        mpi_args=base.mpi_args if options.mpi_args is None else options.mpi_args,
        start_timeout_s=base.start_timeout_s,
        gpus=options.gpus or base.gpus,
        mps=_mps(options, base),
        limits=base.limits if n == base.n else (),
    )


def _mps(options: Options, base: ClusterSpec) -> str:
    return base.mps if options.mps else "0"


def _of_job(options: Options, base: ClusterSpec) -> ClusterSpec:
    """Return the cluster of a platform's file or line: its ranks, hosts, limits and variables; ``--gpus`` wins.

    Raises
    ------
    UsageError
        The line also says how many ranks, or where.
    ConfigError
        The file cannot be used, or requests devices that this machine lacks.
    """
    from hvd_kernel.jobs import here  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.place import place  # noqa: PLC0415 - as above

    if options.n or options.hosts or options.hostfile or (options.job and options.line):
        origin = "the line behind --" if options.line else "--job"
        raise UsageError(f"{origin} says how many ranks there are, and where: leave out -np, -H and --hostfile")
    spec = here.of_words([options.job] if options.job else [], options.line, "")
    placed = place(spec, here.machine().blind() if options.gpus else here.machine())
    return ClusterSpec(
        n=spec.size,
        hosts=placed.spelled if any(replica.host for replica in spec.replicas) else "",
        mpi_args=(_mpi_args(spec) or base.mpi_args) if options.mpi_args is None else options.mpi_args,
        start_timeout_s=base.start_timeout_s,
        gpus=options.gpus or placed.devices,
        mps=_mps(options, base),
        limits=placed.limits if any(placed.limits) else (),
    )


def _mpi_args(spec: JobSpec) -> tuple[str, ...]:
    """Return the arguments of a job for MPI: its variables, and its parameters except those of MPI's links."""
    arguments: list[str] = []
    for variable in spec.environment:
        if variable.value is not None or variable.name in os.environ:
            arguments += ["-x", variable.name if variable.value is None else f"{variable.name}={variable.value}"]
    for name, value in spec.mca:
        arguments += [] if name in _LINKS else ["--mca", name, value]
    return tuple(arguments)


def ignored_parts(options: Options) -> list[str]:
    """Return sentences about the parts without effect in a line behind ``--``: its command, and flags.

    Raises
    ------
    JobError
        The line cannot be parsed.
    """
    if not options.line:
        return []
    from hvd_kernel.jobs import here  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.readers.mpirun import still_true  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.spec import NO_COMMAND  # noqa: PLC0415 - as above

    spec = here.of_words([], options.line, "")
    passed = {name for name, _ in spec.mca if name not in _LINKS}  # to MPI, which starts the ranks of cells
    warnings = [warning for warning in spec.run_warnings if spec.steps or not warning.endswith(NO_COMMAND)]
    return [*(f"{step} is ignored: the cell's code is what runs" for step in spec.steps), *still_true(warnings, passed)]


HERE = "here"
"""Value of ``--on`` for ranks that mpiexec starts, on this machine or on the hosts of ``-H``."""

NAMES = {"ray": "Ray", "spark": "Spark", "k8s": "Kubernetes"}
_START_S = 300.0  # an engine may have to wait for resources


def engine_of(options: Options, base: ClusterSpec) -> str:
    """Return the engine of a line, else that of the running ranks; "": mpiexec."""
    return base.on if not options.on else options.on.removeprefix(HERE)


def engine_spec(options: Options, base: ClusterSpec) -> ClusterSpec:
    """Return the cluster that a line requests of an engine.

    Raises
    ------
    UsageError
        The line has an option that only mpiexec supports, or the number of ranks is missing.
    """
    on = engine_of(options, base)
    unsupported = {
        "-H": options.hosts,
        "--hostfile": options.hostfile,
        "--mpi-args": options.mpi_args,
        "--job": options.job,
        "the line behind --": options.line,
    }
    if flags := [name for name, value in unsupported.items() if value]:
        raise UsageError(
            f"{flags[0]} is for ranks that mpiexec starts, and {NAMES[on]} places its own: leave it out, or use "
            "--on here"
        )
    ranks = lookup.value("HVD_RANKS", os.environ)
    n = options.n or (base.n if base.on == on else 0) or int(ranks or 0)
    if not n:
        raise UsageError(f"--on {on}: the number of ranks is missing: write --on {on} -np 8")
    seconds = lookup.start_timeout(os.environ, _START_S)
    return ClusterSpec(n=n, start_timeout_s=seconds, gpus=options.gpus or base.gpus, on=on)


def refuse_change(now: ClusterSpec, then: ClusterSpec) -> None:
    """Refuse to move living ranks to another engine, since their variables would be lost.

    Raises
    ------
    UsageError
        With the command that stops the ranks.
    """
    if now.on != then.on:
        where = f"on {NAMES[now.on]}" if now.on else "here"
        raise UsageError(
            f"the ranks run {where}: `%hvd stop` ends them, with their variables, and then --on {then.on or HERE} "
            f"starts others; --on {now.on or HERE}, or no --on, continues with these ranks"
        )


def source(spec: ClusterSpec) -> RankSource | None:
    """Return the engine's source of rank processes for a cluster; None: mpiexec starts them.

    Raises
    ------
    UsageError
        This notebook is not connected to the engine, or it is not installed.
    """
    if not spec.on:
        return None
    from hvd_kernel.launch.launchers.cluster_engine import NotebookEngine  # noqa: PLC0415 - only such ranks need it

    return NotebookEngine(_engine(spec), _carried())


def _engine(spec: ClusterSpec) -> Engine:
    cpus, gpus = (float(lookup.value(name, os.environ)) for name in ("HVD_ON_CPUS", "HVD_ON_GPUS"))
    if spec.on == "ray":
        from hvd_kernel.ray.notebook_actors import Actors  # noqa: PLC0415 - needs Ray

        return Actors(spec.n, cpus, gpus)
    if spec.on == "k8s":
        from hvd_kernel.launch.launchers.kubernetes_job import Api, PodJob  # noqa: PLC0415 - only such ranks need it

        return PodJob(spec.n, lookup.value("HVD_ON_IMAGE", os.environ), cpus, gpus, Api())
    from hvd_kernel.spark.runner import stage_of  # noqa: PLC0415 - needs PySpark
    from hvd_kernel.spark.stage import active  # noqa: PLC0415 - as above

    return stage_of(active(), spec.n, barrier=True)


def _carried() -> dict[str, str]:
    """Return the settings of this process, which ranks on an engine do not inherit."""
    names = [name for row in SETTINGS if not row.set_by_others for name in row.variables]
    return {name: os.environ[name] for name in names if name in os.environ}


_DOCTORS = {
    "ray": "hvd_kernel.ray.notebook_actors",
    "spark": "hvd_kernel.spark.stage",
    "k8s": "hvd_kernel.launch.launchers.kubernetes_job",
}


def examine_on(engine: str) -> list[CheckResult]:
    """Check an engine and the environment of its processes."""
    results: list[CheckResult] = import_module(_DOCTORS[engine]).examine()
    return results
