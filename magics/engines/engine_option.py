"""``--on``: the cluster that a line asks an engine for, and what cannot be said with it. Pure but for the settings."""

from __future__ import annotations

import os

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.options import Options
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import lookup

HERE = "here"
"""What ``--on`` says of ranks that mpiexec starts, on this machine or on the hosts of ``-H``."""

NAMES = {"ray": "Ray", "spark": "Spark", "k8s": "Kubernetes"}
_START_S = 300.0  # an engine may have to find room first


def place(options: Options, base: ClusterSpec) -> str:
    """Return the engine that a line means, else that of the ranks that there are; "": none."""
    return base.on if not options.on else options.on.removeprefix(HERE)


def wanted(options: Options, base: ClusterSpec) -> ClusterSpec:
    """Return the cluster that a line asks an engine for.

    Raises
    ------
    UsageError
        It says what only mpiexec can do, or nothing says how many ranks.
    """
    on = place(options, base)
    given = {
        "-H": options.hosts,
        "--hostfile": options.hostfile,
        "--mpi-args": options.mpi_args,
        "--job": options.job,
        "the line behind --": options.line,
    }
    if said := [name for name, value in given.items() if value]:
        raise UsageError(
            f"{said[0]} is for ranks that mpiexec starts, and {NAMES[on]} places its own: leave it out, or say "
            "--on here"
        )
    ranks = lookup.value("HVD_RANKS", os.environ)
    n = options.n or (base.n if base.on == on else 0) or int(ranks or 0)
    if not n:
        raise UsageError(f"--on {on}: say how many ranks there are to be, as in --on {on} -np 8")
    seconds = lookup.start_timeout(os.environ, _START_S)
    return ClusterSpec(n=n, start_timeout_s=seconds, gpus=options.gpus or base.gpus, on=on)


def refuse_change(now: ClusterSpec, then: ClusterSpec) -> None:
    """Refuse to take living ranks elsewhere: their variables cannot come along.

    Raises
    ------
    UsageError
        Naming what ends the ranks.
    """
    if now.on != then.on:
        there = f"on {NAMES[now.on]}" if now.on else "here"
        raise UsageError(
            f"the ranks run {there}: `%hvd stop` ends them, with their variables, and then --on {then.on or HERE} "
            f"starts others; --on {now.on or HERE}, or nothing, means those that there are"
        )
