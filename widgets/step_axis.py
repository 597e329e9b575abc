"""Horizontal axis of the curves: the optimizer step, from the first one on, or the time of a cell without steps.

Pure. widgets/js/charts/xaxis.js has the same rules for the page, where the time can be chosen too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hvd_kernel.formatting import units
from hvd_kernel.widgets.board import Mark
from hvd_kernel.widgets.series import HIGH, LOW

Columns = Sequence[Sequence[float | None]]


class Axis(NamedTuple):
    """Curves and marks over one axis."""

    x: Sequence[float]
    curves: Mapping[str, Columns]
    marks: list[Mark]
    label: Callable[[float], str]


def axis_of(curves: Mapping[str, Any], marks: Sequence[Mark]) -> Axis:
    """Return the curves over steps: of each step its last column, with the ends of the ranges of all its columns.

    With less than two steps, they are over time.
    """
    t, steps, y = curves["t"], curves["step"], curves["y"]
    columns: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        if step > 0:
            columns.setdefault(step, []).append(i)
    if len(columns) < 2:  # noqa: PLR2004 - a line has two ends
        return Axis(t, y, list(marks), units.duration)
    at = [(mark, bisect_right(t, mark.t) - 1) for mark in marks]
    return Axis(
        list(columns),
        {name: [_joined(name, [part[i] for i in group]) for group in columns.values()] for name, part in y.items()},
        [mark._replace(t=steps[i]) for mark, i in at if i >= 0 and steps[i] > 0],
        lambda step: f"step {step:,}",
    )


def _joined(name: str, columns: Columns) -> Sequence[float | None]:
    join = min if name.startswith(LOW) else max if name.startswith(HIGH) else None
    if join is None:
        return columns[-1]
    present = [[value for value in values if value is not None] for values in zip(*columns, strict=True)]
    return [join(values) if values else None for values in present]
