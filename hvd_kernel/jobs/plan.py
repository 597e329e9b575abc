"""Job plan: the tasks of a JobSpec, one per rank, as a table or JSON. Does not start ranks."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from hvd_kernel.formatting.units import binary_size, plural
from hvd_kernel.jobs.spec import Bounds, JobSpec
from hvd_kernel.processes.mps import decision

_HEAD = ("rank", "where", "cpus", "memory", "gpus", "command")


class PlannedRank(msgspec.Struct, frozen=True):
    """Host, resources and command of a rank. ``index`` is that of its replica."""

    rank: int
    role: str
    index: int
    host: str
    cpu: Bounds
    memory_bytes: Bounds
    gpus: int | None
    command: str

    @property
    def where(self) -> str:
        """The host, or the replica if there is no host."""
        return self.host or f"{self.role} {self.index}"


class JobPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tasks, steps and warnings of a job."""

    kind: str
    tasks: tuple[PlannedRank, ...]
    steps: tuple[str, ...]
    warnings: tuple[str, ...]
    mps: tuple[str, ...] = ()  # sentences about ranks that share devices


def plan(spec: JobSpec) -> JobPlan:
    """Return the tasks of a job. Each rank has an equal share of its replica's resources."""
    steps = " && ".join(spec.steps)
    tasks = []
    for rank, replica in spec.ranks():
        part = replica.resources.share(replica.slots)
        where = (rank, replica.role, replica.index, replica.host)
        tasks.append(PlannedRank(*where, part.cpu, part.memory_bytes, part.gpus, replica.command or steps))
    return JobPlan(spec.kind, tuple(tasks), spec.steps, spec.run_warnings, _mps(spec))


def _mps(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each kind of host with more ranks than devices."""
    off = any(variable.name == decision.CHOICE and variable.value == "0" for variable in spec.environment)
    consequence = (
        f"take turns ({decision.CHOICE}=0)"
        if off
        else f"have a private daemon of MPS, where {decision.CONTROL} is installed"
    )
    sizes = dict.fromkeys((replica.slots, replica.resources.gpus or 0) for replica in spec.replicas)
    return tuple(
        f"{ranks} ranks of a host share {plural(gpus, 'GPU')}: they {consequence}"
        for ranks, gpus in sizes
        if 0 < gpus < ranks
    )


def as_json(job_plan: JobPlan) -> str:
    """Return ``{"kind", "tasks": [{"rank", "role", "index", "host", "cpu": {"request", "limit"}, ...}], ...}``."""
    return msgspec.json.format(msgspec.json.encode(_whole(msgspec.to_builtins(job_plan))), indent=2).decode()


def as_text(job_plan: JobPlan) -> str:
    """Return a table; consecutive ranks that are otherwise equal share a line."""
    rows = [_HEAD]
    for _, group in groupby(job_plan.tasks, key=lambda t: (t.where, t.cpu, t.memory_bytes, t.gpus, t.command)):
        first, *_, last = same if len(same := list(group)) > 1 else same * 2
        ranks = str(first.rank) if first.rank == last.rank else f"{first.rank}-{last.rank}"
        memory = _bounds(first.memory_bytes, binary_size)
        gpus = "-" if first.gpus is None else str(first.gpus)
        rows.append((ranks, first.where, _bounds(first.cpu, "{:g}".format), memory, gpus, first.command or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"step {number}: {step}" for number, step in enumerate(job_plan.steps, 1) if len(job_plan.steps) > 1]
    lines += [f"MPS: {sentence}" for sentence in job_plan.mps]
    lines += [f"warning: {warning}" for warning in job_plan.warnings]
    return "\n".join(lines)


def _bounds(bounds: Bounds, shown: Any) -> str:
    """Return request and limit as ``1..2``, or a single number if they are equal or one is missing."""
    values = [value for value in (bounds.request, bounds.limit) if value is not None]
    texts = list(dict.fromkeys(map(shown, values)))
    return "..".join(texts) or "-"


def _whole(value: Any) -> Any:
    """Convert integral floats in a value to int, as numbers of bytes are integers."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value == int(value) else value
