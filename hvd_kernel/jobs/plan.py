"""Job plan: a JobSpec's tasks, one per rank, as a table and as JSON. Starts nothing."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from hvd_kernel.jobs.spec import Bounds, JobSpec
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.resources.memory import spoken

_HEAD = ("rank", "where", "cpus", "memory", "gpus", "command")


class PlannedRank(msgspec.Struct, frozen=True):
    """One rank: where it is, what it may use, what it runs. ``index`` is its replica's."""

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
        """The host, else the replica."""
        return self.host or f"{self.role} {self.index}"


class JobPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would run."""

    kind: str
    tasks: tuple[PlannedRank, ...]
    steps: tuple[str, ...]
    warnings: tuple[str, ...]
    mps: tuple[str, ...] = ()  # which ranks share devices, and what they get for that


def plan(spec: JobSpec) -> JobPlan:
    """Return the tasks of a job. Each rank has an equal share of its replica's resources."""
    steps = " && ".join(spec.steps)
    tasks = []
    for rank, replica in spec.ranks():
        part = replica.resources.share(replica.slots)
        where = (rank, replica.role, replica.index, replica.host)
        tasks.append(PlannedRank(*where, part.cpu, part.memory_bytes, part.gpus, replica.command or steps))
    return JobPlan(spec.kind, tuple(tasks), spec.steps, spec.warnings, _mps(spec))


def _mps(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence on each kind of host whose ranks are more than its devices."""
    off = any(each.name == decision.CHOICE and each.value == "0" for each in spec.environment)
    what = (
        f"take turns ({decision.CHOICE}=0)"
        if off
        else f"have a private daemon of MPS, where {decision.CONTROL} is installed"
    )
    shared = {
        (each.slots, each.resources.gpus): None for each in spec.replicas if 0 < (each.resources.gpus or 0) < each.slots
    }
    return tuple(f"{ranks} ranks of a host share {gpus} GPU{'s' * (gpus != 1)}: they {what}" for ranks, gpus in shared)


def as_json(made: JobPlan) -> str:
    """Return ``{"kind", "tasks": [{"rank", "role", "index", "host", "cpu": {"request", "limit"}, ...}], ...}``."""
    return msgspec.json.format(msgspec.json.encode(_whole(msgspec.to_builtins(made))), indent=2).decode()


def as_text(made: JobPlan) -> str:
    """Return a table; neighbours that differ in rank only share a line."""
    rows = [_HEAD]
    for _, group in groupby(made.tasks, key=lambda t: (t.where, t.cpu, t.memory_bytes, t.gpus, t.command)):
        first, *_, last = same if len(same := list(group)) > 1 else same * 2
        ranks = str(first.rank) if first.rank == last.rank else f"{first.rank}-{last.rank}"
        memory = _bounds(first.memory_bytes, spoken)
        gpus = "-" if first.gpus is None else str(first.gpus)
        rows.append((ranks, first.where, _bounds(first.cpu, "{:g}".format), memory, gpus, first.command or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"step {number}: {step}" for number, step in enumerate(made.steps, 1) if len(made.steps) > 1]
    lines += [f"MPS: {each}" for each in made.mps]
    lines += [f"warning: {each}" for each in made.warnings]
    return "\n".join(lines)


def _bounds(bounds: Bounds, shown: Any) -> str:
    """Return ``1..2``: request and limit; one number where they are equal or one is missing."""
    values = [value for value in (bounds.request, bounds.limit) if value is not None]
    texts = list(dict.fromkeys(map(shown, values)))
    return "..".join(texts) or "-"


def _whole(value: Any) -> Any:
    """Return the value with 2.0 as 2: a count of bytes is not a fraction."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value == int(value) else value
