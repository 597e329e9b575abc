"""Batch script for LSF: #BSUB lines, and an hvdrun line for each step, which runs on the hosts of the allocation.

hvdrun starts its agents with jsrun if available, otherwise with ssh.
Source: IBM Spectrum LSF 10.1, command reference: bsub -n, -R (span, rusage, affinity), -hl, -M, -gpu.
"""

from __future__ import annotations

import math

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.spec import JobSpec, Replica
from hvd_kernel.jobs.writers import common, shell
from hvd_kernel.jobs.writers.options import WriterOptions


def write(spec: JobSpec, _options: WriterOptions) -> str:
    """Return the script.

    Raises
    ------
    JobError
        The job has no steps, its hosts differ, or a text has a control character.
    """
    shape = common.Shape(spec)
    replica = shape.alike("LSF job")
    notes = [*shape.notes, *common.lost(spec, "LSF"), *shell.lost(spec)]
    if spec.rendezvous is not None:
        notes.append("the ranks meet where hvdrun says")
    values = {"-J": spec.name, "-cwd": spec.workdir}
    directives = [f"{flag} {shell.word(value, flag.lstrip('-'))}" for flag, value in values.items() if value]
    directives += [f"-n {shape.size}", f'-R "span[ptile={replica.slots}]"', *_resources(replica, notes)]
    body = shell.body(spec, [lines.hvdrun(step, interfaces=spec.interfaces) for step in common.steps(spec)])
    comment = common.head(f"{shape.counted('host')}, by LSF", ["  bsub < FILE"], notes)
    return f"#!/bin/bash\n{comment}{''.join(f'#BSUB {directive}' + chr(10) for directive in directives)}set -e\n{body}"


def _resources(replica: Replica, notes: list[str]) -> list[str]:
    required, directives = replica.resources, []
    cpu = common.top(required.cpu)
    if cpu is not None:
        directives.append(f'-R "affinity[core({_cores(cpu, replica, notes)})]"')
    if required.memory_bytes.request is not None:
        directives.append(f'-R "rusage[mem={common.mebibytes(required.memory_bytes.request, "memory", notes)}MB/host]"')
    if required.memory_bytes.limit is not None:
        directives.append(f"-hl -M {common.mebibytes(required.memory_bytes.limit, 'memory', notes)}MB")
    if required.gpus is not None:
        directives += [f'-gpu "num={required.gpus}/host"'] if required.gpus else []
    if (
        required.cpu.request is not None
        and required.cpu.limit is not None
        and required.cpu.request != required.cpu.limit
    ):
        notes.append("of cpu the limit is asked for: what LSF gives is both request and limit")
    return directives


def _cores(cpu: float, replica: Replica, notes: list[str]) -> int:
    per_rank = max(1, math.ceil(cpu / replica.slots))
    if per_rank * replica.slots != cpu:
        notes.append(f"{cpu:g} cores for {replica.slots} ranks became {per_rank} for each: LSF counts whole ones")
    return per_rank
