"""Batch scripts of LSF (#BSUB lines) and Slurm (#SBATCH lines), with an hvdrun line for each step.

In an LSF job hvdrun starts its agents with jsrun if available, otherwise with ssh.
Sources: IBM Spectrum LSF 10.1, command reference: bsub -n, -R (span, rusage, affinity), -hl, -M, -gpu;
https://slurm.schedmd.com/sbatch.html and heterogeneous_jobs.html; tested with Slurm 22.05.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import groupby

from hvd_kernel.jobs import platform_fields, shell_lines
from hvd_kernel.jobs.manifests import top
from hvd_kernel.jobs.shell_lines import quoted
from hvd_kernel.jobs.spec import SECRETS, JobError, JobSpec, Replica, Resources
from hvd_kernel.jobs.writers import common
from hvd_kernel.jobs.writers.common import WriterOptions, Written

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def word(text: str, field: str) -> str:
    """Quote a text as a word on a single line.

    Raises
    ------
    JobError
        The text has a newline or another control character.
    """
    if "\n" in text:
        raise JobError(f"{field}: {text!r} has a line end: a script's head takes it in one line.")
    return quoted(checked(text, field))


def checked(text: str, field: str) -> str:
    """Return a text after checking it for control characters.

    Raises
    ------
    JobError
        The text has a control character.
    """
    match = _CONTROL.search(text)
    if match:
        raise JobError(
            f"{field}: {text!r} has the control character {match[0]!r}, which no script can hold: leave it out."
        )
    return text


def script_body(spec: JobSpec, commands: Sequence[str]) -> str:
    """Return the lines of the script: exported variables, then the commands of the steps.

    Raises
    ------
    JobError
        The name of a variable is invalid in a shell, or a text has a control character.
    """
    exports = []
    for variable in spec.environment:
        if not _IDENTIFIER.fullmatch(variable.name):
            raise JobError(f"environment: a script takes no variable {variable.name!r}: rename it, or leave it out.")
        if variable.name in SECRETS:
            continue
        value = "" if variable.value is None else f"={quoted(checked(variable.value, variable.name))}"
        exports.append(f"export {variable.name}{value}")
    setup = [checked(line, "setup") for line in platform_fields.setup(spec)]
    return "".join(f"{line}\n" for line in (*exports, *setup, *(checked(line, "steps") for line in commands)))


def settings(
    spec: JobSpec, kind: str, write: Callable[[str, str | bool], str], elsewhere: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the directives of the job's settings, and a sentence for each setting without one.

    Parameters
    ----------
    spec
        The job.
    kind
        Platform of the script.
    write
        Function that returns the directive of a flag and its value.
    elsewhere
        Names of settings that the writer puts into its other directives.
    """
    rows = [row for row in platform_fields.flags(spec, kind) if row[2] not in elsewhere]
    names = {platform_fields.SETUP, platform_fields.SHELL, *elsewhere, *(name for _, _, name in rows)}
    carried = platform_fields.fields(spec, tuple(names))
    return [write(flag, value) for flag, value, _ in rows], platform_fields.losses(spec, kind, carried)


def shebang(spec: JobSpec) -> str:
    """Return the first line of a script; the shell of containers' scripts may be sh, which is part of bash."""
    path, options = next(iter(platform_fields.values(spec, platform_fields.SHELL)), ("/bin/bash", ""))
    return f"#!{path if '/' in path else f'/bin/{path}'}{' -l' if 'l' in options else ''}"


def lost(spec: JobSpec) -> list[str]:
    """Return a sentence for each part of a job that a batch script does not support."""
    return [f"the image {spec.image} is left out: ranks run in the environment of the cluster"] if spec.image else []


def rendezvous_notes(spec: JobSpec) -> list[str]:
    """Return sentences about the rendezvous and the interfaces of ranks that srun starts."""
    sentences = {
        "the ranks meet at the first node": spec.rendezvous is not None,
        f"interfaces {', '.join(spec.interfaces)} left out: HVD_TCP_INTERFACE names one": bool(spec.interfaces),
    }
    return [sentence for sentence, holds in sentences.items() if holds]


def write_lsf(spec: JobSpec, _options: WriterOptions) -> Written:
    """Return the script.

    Raises
    ------
    JobError
        The job has no steps, its hosts differ, or a text has a control character.
    """
    shape = common.Shape(spec)
    replica = shape.alike("LSF job")
    fields, left_out = settings(spec, "lsf", _bsub_flag, ("lsf.array", "lsf.R", "lsf.affinity", "lsf.gpu"))
    losses = [*shape.notes, *common.lost(spec, "LSF"), *lost(spec), *left_out]
    notes = common.kept_secret(spec, "each run has one of its own")
    if spec.rendezvous is not None:
        notes.append("the ranks meet at the address of hvdrun")
    array = "".join(platform_fields.values(spec, "lsf.array"))
    values = {"-J": spec.name + array, "-cwd": spec.workdir}
    directives = [f"{flag} {word(value, flag.lstrip('-'))}" for flag, value in values.items() if value]
    directives += [*fields, f"-n {shape.size}", f'-R "span[ptile={replica.slots}]"', *_resources(replica, notes, spec)]
    directives += [f"-R {word(text, 'R')}" for text in platform_fields.values(spec, "lsf.R")]
    *first, last = (shell_lines.hvdrun(step, interfaces=spec.interfaces) for step in common.steps(spec))
    body = script_body(spec, [*first, f"exec {checked(last, 'steps')}"])  # LSF's signals reach hvdrun
    comment = common.head(f"{shape.counted('host')}, by LSF", ["  bsub < FILE"], [*losses, *notes])
    head = "".join(f"#BSUB {directive}\n" for directive in directives)
    return Written(f"{shebang(spec)}\n{comment}{head}set -e\n{body}", common.on_one_line(losses))


def _bsub_flag(flag: str, value: str | bool) -> str:
    return f"-{flag}" if value is True else f"-{flag} {word(str(value), flag)}"


def _resources(replica: Replica, notes: list[str], spec: JobSpec) -> list[str]:
    required, directives = replica.resources, []
    cpu = top(required.cpu)
    affinity = [f"core({_cores(cpu, replica, notes)})"] if cpu is not None else []
    affinity += platform_fields.values(spec, "lsf.affinity")
    if affinity:
        directives.append(f'-R "affinity[{":".join(affinity)}]"')
    if required.memory_bytes.request is not None:
        directives.append(f'-R "rusage[mem={common.mebibytes(required.memory_bytes.request, "memory", notes)}MB/host]"')
    if required.memory_bytes.limit is not None:
        directives.append(f"-hl -M {common.mebibytes(required.memory_bytes.limit, 'memory', notes)}MB")
    if required.gpus is not None:
        options = "".join(f":{text}" for text in platform_fields.values(spec, "lsf.gpu"))
        directives += [f'-gpu "num={required.gpus}/host{options}"'] if required.gpus else []
    if (
        required.cpu.request is not None
        and required.cpu.limit is not None
        and required.cpu.request != required.cpu.limit
    ):
        notes.append("cpu: the limit is requested, as in LSF request and limit are the same")
    return directives


def _cores(cpu: float, replica: Replica, notes: list[str]) -> int:
    per_rank = max(1, math.ceil(cpu / replica.slots))
    if per_rank * replica.slots != cpu:
        notes.append(f"{cpu:g} cores for {replica.slots} ranks became {per_rank} for each: LSF counts whole ones")
    return per_rank


_KEY = """\
# Ranks of several nodes authenticate each other with it.
HVD_SECRET_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export HVD_SECRET_KEY
"""

Group = Sequence[Replica]


def write_slurm(spec: JobSpec, _options: WriterOptions) -> Written:
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
    fields, left_out = settings(spec, "slurm", _sbatch_flag, (platform_fields.GPU_TYPE,))
    losses = [*shape.notes, *common.lost(spec, "Slurm"), *lost(spec), *left_out]
    notes = [*common.kept_secret(spec, "each run has one of its own"), *rendezvous_notes(spec)]
    directives = [*_job(spec), *fields]
    gpu_type = "".join(f"{value}:" for value in platform_fields.values(spec, platform_fields.GPU_TYPE))
    for number, group in enumerate(groups):
        directives += ["hetjob"] if number else []
        directives += _component(group, _filled(groups), notes, gpu_type)
    body = script_body(spec, [f"{_srun(groups, shape)} {shell_lines.wrapped(step)}" for step in common.steps(spec)])
    comment = common.head(f"{shape.counted('node')}, by Slurm", ["  sbatch FILE"], [*losses, *notes])
    head = "".join(f"#SBATCH {directive}\n" for directive in directives)
    text = f"{shebang(spec)}\n{comment}{head}set -e\n{_KEY if len(shape.replicas) > 1 else ''}{body}"
    return Written(text, common.on_one_line(losses))


def _sbatch_flag(flag: str, value: str | bool) -> str:
    return f"--{flag}" if value is True else f"--{flag}={word(str(value), flag)}"


def _job(spec: JobSpec) -> list[str]:
    values = {"--job-name": spec.name, "--chdir": spec.workdir}
    return [f"{flag}={word(value, flag.lstrip('-'))}" for flag, value in values.items() if value]


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
    return {"cpu": top(resources.cpu), "memory": top(resources.memory_bytes), "gpus": resources.gpus}


def _component(group: Group, elsewhere: set[str], notes: list[str], gpu_type: str) -> list[str]:
    first = group[0]
    amounts = _amounts(first.resources)
    directives = [f"--nodes={len(group)}", f"--ntasks-per-node={first.slots}"]
    if amounts["cpu"] is not None or "cpu" in elsewhere:
        directives.append(f"--cpus-per-task={_cpus(first, notes)}")
    if amounts["memory"] or "memory" in elsewhere:
        directives.append(f"--mem={common.mebibytes(amounts['memory'] or 0, 'memory', notes)}M")
    if amounts["gpus"] is not None or "gpus" in elsewhere:
        directives.append(f"--gpus-per-node={gpu_type if first.resources.gpus else ''}{first.resources.gpus or 0}")
    for name, bounds in (("cpu", first.resources.cpu), ("memory", first.resources.memory_bytes)):
        if bounds.limit is not None and bounds.request is not None and bounds.request != bounds.limit:
            notes.append(f"{name}: the limit is requested, as in Slurm request and limit are the same")
    return directives


def _cpus(replica: Replica, notes: list[str]) -> int:
    cpu = top(replica.resources.cpu) or replica.slots
    per_rank = max(1, math.ceil(cpu / replica.slots))
    if per_rank * replica.slots != cpu:
        notes.append(f"{cpu:g} cores for {replica.slots} ranks became {per_rank} for each: Slurm counts whole ones")
    return per_rank


def _srun(groups: Sequence[Group], shape: common.Shape) -> str:
    """Return srun with the flags that it does not inherit from the script's head."""
    if len(groups) > 1:  # flags would apply to all components: let each task use all cores of its component
        return f"srun --het-group=0-{len(groups) - 1} --cpu-bind=none"
    first = groups[0][0]
    cores = [] if top(first.resources.cpu) is None else [f"--cpus-per-task={_cpus(first, [])}"]
    partly = [f"--ntasks={shape.np}", f"--distribution=plane={first.slots}"] if shape.np else []  # node by node
    return " ".join(["srun", *cores, *partly])
