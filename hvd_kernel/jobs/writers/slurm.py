"""Batch script for Slurm: #SBATCH lines, and an srun line for each step, whose tasks are the ranks.

Replicas that differ become components of a heterogeneous job, which are started by a single srun.
Source: https://slurm.schedmd.com/sbatch.html and heterogeneous_jobs.html; tested with Slurm 22.05.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.spec import JobSpec, Replica, Resources
from hvd_kernel.jobs.writers import common, shell
from hvd_kernel.jobs.writers.options import WriterOptions

_KEY = """\
# Ranks of several nodes know each other by it.
HVD_SECRET_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export HVD_SECRET_KEY
"""

Group = Sequence[Replica]


def write(spec: JobSpec, _options: WriterOptions) -> str:
    """Return the script.

    Raises
    ------
    JobError
        The job has no steps, or a text has a control character.
    """
    shape = common.Shape(spec)
    groups = [list(same) for _, same in groupby(shape.replicas, lambda replica: (replica.slots, replica.resources))]
    if shape.np and len(groups) > 1:
        groups = _trimmed(groups, shape)
    notes = [*shape.notes, *common.lost(spec, "Slurm"), *shell.lost(spec), *shell.rendezvous_notes(spec)]
    directives = _job(spec)
    for number, group in enumerate(groups):
        directives += ["hetjob"] if number else []
        directives += _component(group, _filled(groups), notes)
    body = shell.body(spec, [f"{_srun(groups, shape)} {lines.wrapped(step)}" for step in common.steps(spec)])
    comment = common.head(f"{shape.counted('node')}, by Slurm", ["  sbatch FILE"], notes)
    head = "".join(f"#SBATCH {directive}\n" for directive in directives)
    return f"#!/bin/bash\n{comment}{head}set -e\n{_KEY if len(shape.replicas) > 1 else ''}{body}"


def _job(spec: JobSpec) -> list[str]:
    values = {"--job-name": spec.name, "--chdir": spec.workdir}
    return [f"{flag}={shell.word(value, flag.lstrip('-'))}" for flag, value in values.items() if value]


def _trimmed(groups: list[list[Replica]], shape: common.Shape) -> list[list[Replica]]:
    """Return groups with the slots of the last replica reduced to its ranks: components have tasks, not slots."""
    last = groups[-1][-1]
    over = sum(replica.slots for replica in shape.replicas) - shape.size
    shape.notes.append(
        f"{last.role} {last.index} has {last.slots - over} of its {last.slots} slots: the others stay free"
    )
    alone = Replica(last.role, last.index, slots=last.slots - over, resources=last.resources)
    return [*groups[:-1], *([groups[-1][:-1]] if len(groups[-1]) > 1 else []), [alone]]


def _filled(groups: Sequence[Group]) -> set[str]:
    """Return the resources that any component requests; Slurm copies missing ones from the first component."""
    if len(groups) == 1:
        return set()
    return {name for group in groups for name, value in _amounts(group[0].resources).items() if value is not None}


def _amounts(resources: Resources) -> dict[str, float | None]:
    return {"cpu": common.top(resources.cpu), "memory": common.top(resources.memory_bytes), "gpus": resources.gpus}


def _component(group: Group, elsewhere: set[str], notes: list[str]) -> list[str]:
    first = group[0]
    amounts = _amounts(first.resources)
    directives = [f"--nodes={len(group)}", f"--ntasks-per-node={first.slots}"]
    if amounts["cpu"] is not None or "cpu" in elsewhere:
        directives.append(f"--cpus-per-task={_cpus(first, notes)}")
    if amounts["memory"] or "memory" in elsewhere:
        directives.append(f"--mem={common.mebibytes(amounts['memory'] or 0, 'memory', notes)}M")
    if amounts["gpus"] is not None or "gpus" in elsewhere:
        directives.append(f"--gpus-per-node={first.resources.gpus or 0}")
    for name, bounds in (("cpu", first.resources.cpu), ("memory", first.resources.memory_bytes)):
        if bounds.limit is not None and bounds.request is not None and bounds.request != bounds.limit:
            notes.append(f"of {name} the limit is asked for: what Slurm gives is both request and limit")
    return directives


def _cpus(replica: Replica, notes: list[str]) -> int:
    cpu = common.top(replica.resources.cpu) or replica.slots
    per_rank = max(1, math.ceil(cpu / replica.slots))
    if per_rank * replica.slots != cpu:
        notes.append(f"{cpu:g} cores for {replica.slots} ranks became {per_rank} for each: Slurm counts whole ones")
    return per_rank


def _srun(groups: Sequence[Group], shape: common.Shape) -> str:
    """Return srun with the flags that it does not inherit from the script's head."""
    if len(groups) > 1:  # flags would apply to all components: let each task use all cores of its component
        return f"srun --het-group=0-{len(groups) - 1} --cpu-bind=none"
    first = groups[0][0]
    cores = [] if common.top(first.resources.cpu) is None else [f"--cpus-per-task={_cpus(first, [])}"]
    partly = [f"--ntasks={shape.np}", f"--distribution=plane={first.slots}"] if shape.np else []  # node by node
    return " ".join(["srun", *cores, *partly])
