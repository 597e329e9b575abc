"""Slurm step: what srun tells a task about it. Pure: an environment in, a placement out.

Terms.
  step       one srun; its tasks are the ranks
  placement  which rank this process is, and the address of rank 0's host where the ranks rendezvous
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Env = Mapping[str, str]

_TASK = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")
_PORTS = range(61440, 65536)  # above what Linux gives to connections


@dataclass(frozen=True)
class Placement:
    """A task of a step."""

    rank: int
    size: int
    host: str
    port: int


def speaks(env: Env) -> bool:
    """Tell whether srun started this process itself.

    A batch script has no step. What another launcher starts inside a step is a task of its own: its PMI variables
    say something else then.
    """
    if not all(env.get(name) for name in _TASK):
        return False
    told = (env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"])
    return "PMI_RANK" not in env or (env["PMI_RANK"], env.get("PMI_SIZE")) == told


def placement(env: Env) -> Placement:
    """Return this task's placement. Task 0 is on the step's first node.

    The port follows from job and step, so that all tasks know it and two steps at once have different ones.
    """
    alone = env.get("SLURM_STEP_NUM_NODES") == "1"
    number = int(env.get("SLURM_JOB_ID", "0")) + 61 * int(env["SLURM_STEP_ID"])
    return Placement(
        rank=int(env["SLURM_PROCID"]),
        size=int(env["SLURM_STEP_NUM_TASKS"]),
        host="127.0.0.1" if alone else first_node(env["SLURM_STEP_NODELIST"]),
        port=_PORTS[number % len(_PORTS)],
    )


def first_node(names: str) -> str:
    """Return the first of ``a[01-03,7],b2``: a01."""
    first = re.split(r",(?![^\[]*\])", names)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)
