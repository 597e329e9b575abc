"""Colours of ranks and of the timeline: distinguishable with every colour vision, visible on light and dark backgrounds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hvdtest.offenders import ROOT

from hvd_kernel.widgets.picture import FEW
from hvd_kernel.widgets.swimlanes.rank_lanes import KINDS

LIGHT, DARK = "#ffffff", "#111111"
"""Background of JupyterLab's themes."""

SEEN_BY = {  # Machado and others 2009, the whole strength of it: what reaches the eye, of linear red, green, blue
    "everybody": np.eye(3),
    "deuteranopes": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopes": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopes": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
_LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip

Colours = npt.NDArray[np.float64]


def linear(colours: Sequence[str]) -> Colours:
    """Linear red, green, blue of ``#rrggbb``: shape (n, 3)."""
    parts = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(colours: Colours) -> Colours:
    """Return colours in a space whose distances are about those that people perceive."""
    return np.asarray(np.cbrt(np.clip(colours, 0, 1) @ np.transpose(_LMS)) @ np.transpose(_LAB))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""
    high, low = sorted(linear([one, other]) @ [0.2126, 0.7152, 0.0722], reverse=True)
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize(
    ("name", "colours", "least"), [("ranks", FEW, 0.09), ("timeline", [c for c, _ in KINDS.values()], 0.07)]
)
def test_every_two_colours_are_distinguishable(name: str, colours: Sequence[str], least: float) -> None:
    for who, matrix in SEEN_BY.items():
        seen = oklab(linear(colours) @ np.transpose(matrix))
        near = {
            (colours[i], colours[j]): round(float(np.linalg.norm(seen[i] - seen[j])), 3)
            for i, j in itertools.combinations(range(len(colours)), 2)
        }
        assert {pair: far for pair, far in near.items() if far < least} == {}, f"{name}, as {who} see them"


def test_lines_are_seen_on_both_backgrounds() -> None:
    assert {
        colour: contrast(colour, behind) for colour in FEW for behind in (LIGHT, DARK) if contrast(colour, behind) < 3
    } == {}


def test_timeline_colours_match_in_panel_and_picture() -> None:
    css = (ROOT / "widgets" / "dashboard.css").read_text()
    assert {kind: re.search(rf"--hvd-{kind}: (#\w+);", css)[1] for kind in KINDS} == {  # type: ignore[index]
        kind: colour for kind, (colour, _) in KINDS.items()
    }
