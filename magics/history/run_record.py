"""Record of a run: the figures of one cell that trained, and its curves. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

Curve = tuple[Sequence[float], Sequence[float | None]]
"""Seconds since the cell began, and the mean of the ranks at each."""


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    number: int = 0  # in the order of their ends; 0: not kept yet
    time: float = 0.0  # of its end, seconds since 1970
    place: str = ""  # the notebook's folder
    commit: str = ""  # of the repository there
    cell: int = 0
    source: str = ""  # digest of the cell's code
    state: str = "done"
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    samples_per_s: float | None = None  # of all ranks together
    gbps: float | None = None
    comm: float | None = None  # share of time in collectives
    logged: Mapping[str, float | str | None] = field(default_factory=dict)  # last values, means of the ranks
    curves: Mapping[str, Curve] = field(default_factory=dict)


def digest(code: str) -> str:
    """Return twelve digits that tell one source from another: of SHA-256, without blank lines at its ends."""
    return hashlib.sha256(code.strip().encode()).hexdigest()[:12]


def of_summary(summary: Mapping[str, Any], curves: Mapping[str, Curve]) -> RunRecord:
    """Return the record of what a dashboard has measured (``widgets/summary.py``)."""
    return RunRecord(
        ranks=tuple(summary["ranks"]),
        seconds=round(summary["seconds"], 2),
        steps=summary["steps"],
        samples_per_s=summary["samples_per_s"]["total"],
        gbps=summary["allreduce_gbps"],
        comm=summary["comm_share"],
        logged=summary["logged"],
        curves=curves,
    )


def written(record: RunRecord) -> str:
    """Return the record as a line of JSON."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def read(line: str) -> RunRecord | None:
    """Return the record of a line; None: it is none, or not whole. What a newer version has added is left out."""
    try:
        found = json.loads(line)
        known = {each.name: found[each.name] for each in fields(RunRecord) if each.name in found}
        return replace(RunRecord(**known), number=int(found["number"]), ranks=tuple(found["ranks"]))
    except (ValueError, TypeError, KeyError):
        return None
