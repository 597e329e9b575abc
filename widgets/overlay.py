"""Overlay of runs' curves in one SVG picture: the loss and the speed of each run over its seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_kernel.widgets.board import SAMPLES
from hvd_kernel.widgets.picture import FONT, INK, MARGIN, PLOT_HEIGHT, RULE, SOFT, chart, colour, escaped, text

_WIDTH = 720  # JupyterLab does not shrink a picture: this one has room beside the file browser of a small window
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
    width = (_WIDTH - 2 * MARGIN - 24 * (len(drawn) - 1)) / max(1, len(drawn))
    legend = "".join(
        f'<rect x="{MARGIN + i * _PITCH}" y="19" width="14" height="3" rx="1.5" fill="{colour(i, len(runs))}"/>'
        + text(MARGIN + i * _PITCH + 20, 25, name, SOFT)
        for i, name in enumerate(runs)
    )
    charts = "".join(
        chart(MARGIN + i * (width + 24), 40, width, label, _together(runs, key), zero=key == SAMPLES)
        for i, (key, label) in enumerate(drawn)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' role="img" aria-label="{escaped(", ".join(runs))}: curves" font-family="{FONT}" font-size="12" fill="{INK}"'
        ' style="max-width:100%;height:auto;font-variant-numeric:tabular-nums">'
        f'<rect x=".5" y=".5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8" fill="#fff" stroke="{RULE}"/>'
        f"{legend}{charts}</svg>"
    )


def _together(runs: Mapping[str, Mapping[str, Curve]], key: str) -> tuple[list[float], list[list[float | None]]]:
    """Return the curves over one time axis: at a moment that a run has no value for, it has a hole."""
    values = [dict(zip(*curves[key], strict=True)) if key in curves else {} for curves in runs.values()]
    moments = sorted({t for each in values for t in each})
    return moments, [[each.get(t) for each in values] for t in moments]
