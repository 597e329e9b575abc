"""``--on``: engines other than mpiexec that start a notebook's ranks: their options, their start, their doctors."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.options import Options
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import SETTINGS, lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.engine_launch import RankSource
    from hvd_kernel.diagnosis.machine import CheckResult
    from hvd_kernel.launch.launchers.cluster_engine import Engine


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
        raise UsageError(f"--on {on}: say how many ranks there are to be, as in --on {on} -np 8")
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
            f"starts others; --on {now.on or HERE}, or nothing, means those that there are"
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
    "ray": "hvd_kernel.ray.doctor",
    "spark": "hvd_kernel.spark.doctor",
    "k8s": "hvd_kernel.launch.launchers.kubernetes_job",
}


def examine_on(engine: str) -> list[CheckResult]:
    """Check an engine and the environment of its processes."""
    results: list[CheckResult] = import_module(_DOCTORS[engine]).examine()
    return results
