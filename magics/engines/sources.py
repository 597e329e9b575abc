"""Who starts a notebook's ranks elsewhere: the engine of a cluster's specification. Only here it is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import SETTINGS, lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster.by_engine.engine import RankSource
    from hvd_kernel.launch.launchers.cluster_engine import Engine


def source(spec: ClusterSpec) -> RankSource | None:
    """Return what has the processes of such a cluster started; None: mpiexec does.

    Raises
    ------
    UsageError
        This notebook is not connected to the engine, or it is not installed.
    """
    if not spec.on:
        return None
    from hvd_kernel.launch.launchers.notebook_engine import NotebookEngine  # noqa: PLC0415 - only such ranks need it

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
    """Return the settings that this process has: ranks elsewhere do not inherit them."""
    names = [name for row in SETTINGS if not row.set_by_others for name in row.variables]
    return {name: os.environ[name] for name in names if name in os.environ}
