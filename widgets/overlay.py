"""Overlay of runs' curves in one SVG picture: the loss and the speed of each run over its seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_kernel.widgets.board import SAMPLES
from hvd_kernel.widgets.picture import MARGIN, PLOT_HEIGHT, SOFT, WIDTH, chart, colour, framed, text

_HEIGHT = PLOT_HEIGHT + 92
_PITCH = 110

Curve = tuple[Sequence[float], Sequence[float | None]]


def overlay(runs: Mapping[str, Mapping[str, Curve]], loss: str) -> str:
    """Return the picture.

    Parameters
    ----------
    runs
        By the name of a run its curves, as ``curves_of`` has them.
    loss
        The logged value that is drawn on the left; "" for none.
    """
    wanted = [(f"log:{loss}", loss)] * bool(loss) + [(SAMPLES, f"{SAMPLES} per rank")]
    drawn = [
        (key, label) for key, label in wanted if any(any(curves[key][1]) for curves in runs.values() if key in curves)
    ]
    width = (WIDTH - 2 * MARGIN - 24 * (len(drawn) - 1)) / max(1, len(drawn))
    legend = "".join(
        f'<rect x="{MARGIN + i * _PITCH}" y="19" width="14" height="3" rx="1.5" fill="{colour(i, len(runs))}"/>'
        + text(MARGIN + i * _PITCH + 20, 25, name, SOFT)
        for i, name in enumerate(runs)
    )
    charts = "".join(
        chart(MARGIN + i * (width + 24), 40, width, label, _together(runs, key), zero=key == SAMPLES)
        for i, (key, label) in enumerate(drawn)
    )
    return framed(f"{', '.join(runs)}: curves", _HEIGHT, legend + charts)


def _together(runs: Mapping[str, Mapping[str, Curve]], key: str) -> tuple[list[float], list[list[float | None]]]:
    """Return the curves over one time axis: at a moment that a run has no value for, it has a hole."""
    values = [dict(zip(*curves[key], strict=True)) if key in curves else {} for curves in runs.values()]
    moments = sorted({t for each in values for t in each})
    return moments, [[each.get(t) for each in values] for t in moments]
