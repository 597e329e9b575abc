"""Batch script for LSF: #BSUB lines, and hvdrun for each step, which takes the hosts from the allocation.

hvdrun goes out by jsrun where that is, else by ssh.
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
        The job has no steps, its hosts differ, or it has something that no script can hold.
    """
    shape = common.Shape(spec)
    replica = shape.alike("LSF job")
    notes = [*shape.notes, *common.lost(spec, "LSF"), *shell.lost(spec)]
    if spec.rendezvous is not None:
        notes.append("the ranks meet where hvdrun says")
    said = {"-J": spec.name, "-cwd": spec.workdir}
    asked = [f"{flag} {shell.word(value, flag.lstrip('-'))}" for flag, value in said.items() if value]
    asked += [f"-n {shape.size}", f'-R "span[ptile={replica.slots}]"', *_resources(replica, notes)]
    body = shell.body(spec, [lines.hvdrun(step, interfaces=spec.interfaces) for step in common.steps(spec)])
    made = common.head(f"{shape.counted('host')}, by LSF", ["  bsub < FILE"], notes)
    return f"#!/bin/bash\n{made}{''.join(f'#BSUB {each}' + chr(10) for each in asked)}set -e\n{body}"


def _resources(replica: Replica, notes: list[str]) -> list[str]:
    asked, found = replica.resources, []
    cpu = common.top(asked.cpu)
    if cpu is not None:
        found.append(f'-R "affinity[core({_cores(cpu, replica, notes)})]"')
    if asked.memory_bytes.request is not None:
        found.append(f'-R "rusage[mem={common.mebibytes(asked.memory_bytes.request, "memory", notes)}MB/host]"')
    if asked.memory_bytes.limit is not None:
        found.append(f"-hl -M {common.mebibytes(asked.memory_bytes.limit, 'memory', notes)}MB")
    if asked.gpus is not None:
        found += [f'-gpu "num={asked.gpus}/host"'] if asked.gpus else []
    if asked.cpu.request is not None and asked.cpu.limit is not None and asked.cpu.request != asked.cpu.limit:
        notes.append("of cpu the limit is asked for: what LSF gives is both request and limit")
    return found


def _cores(cpu: float, replica: Replica, notes: list[str]) -> int:
    each = max(1, math.ceil(cpu / replica.slots))
    if each * replica.slots != cpu:
        notes.append(f"{cpu:g} cores for {replica.slots} ranks became {each} for each: LSF counts whole ones")
    return each
