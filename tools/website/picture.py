"""A Mermaid flowchart of floors (``subgraph``) as an SVG: a row per floor, an arrow per ``-->``. No script, no font of its own.

Only what tests/hvdtest/rooms.py writes is understood; another line raises a ``ValueError``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

FLOOR = re.compile(r'subgraph \w+\["(.+)"\]$')
NODE = re.compile(r'(\w+)\["(.+)"\]$')
ARROW = re.compile(r"(\w+) --> (\w+)$")
WIDTH, TITLE, HEIGHT, GAP, BETWEEN = 860, 20, 28, 34, 12
"""Width of the picture; height of a floor's title, of a node, and of the space below a floor; space between nodes."""
CHARACTER = 7.6
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0 6 3 0 6z" class="tip"/></marker></defs>'
)


@dataclass
class Chart:
    """Floors with their nodes, from top to bottom, and arrows between nodes."""

    floors: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    arrows: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Box:
    """A node's place."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """Return the horizontal middle."""
        return self.x + self.width / 2


def parse(text: str) -> Chart:
    """Return the chart of a Mermaid text."""
    chart = Chart()
    for line in filter(None, map(str.strip, text.splitlines())):
        if floor := FLOOR.match(line):
            chart.floors.append((floor[1], {}))
        elif node := NODE.match(line):
            chart.floors[-1][1][node[1]] = node[2]
        elif arrow := ARROW.match(line):
            chart.arrows.append((arrow[1], arrow[2]))
        elif line not in {"flowchart TD", "end"}:
            raise ValueError(f"the picture has a line that cannot be drawn: {line}")
    return chart


def places(chart: Chart) -> dict[str, Box]:
    """Return the box of each node; the nodes of a floor are centred."""
    boxes: dict[str, Box] = {}
    y = 0.0
    for _, nodes in chart.floors:
        widths = [len(label) * CHARACTER + 20 for label in nodes.values()]
        x = (WIDTH - sum(widths) - BETWEEN * (len(widths) - 1)) / 2
        for node, width in zip(nodes, widths, strict=True):
            boxes[node] = Box(x, y + TITLE, width)
            x += width + BETWEEN
        y += TITLE + HEIGHT + GAP
    return boxes


def _arrow(start: Box, end: Box) -> str:
    """Return the path from the bottom of a box to the top of one below it, or round to the bottom of one beside it."""
    low = start.y + HEIGHT
    if start.y == end.y:
        return f"M{start.middle:.0f} {low:.0f}C{start.middle:.0f} {low + 20:.0f} {end.middle:.0f} {low + 20:.0f} {end.middle:.0f} {low + 5:.0f}"
    bend = min(60.0, (end.y - low) / 2)
    return f"M{start.middle:.0f} {low:.0f}C{start.middle:.0f} {low + bend:.0f} {end.middle:.0f} {end.y - bend:.0f} {end.middle:.0f} {end.y - 5:.0f}"


def svg(text: str) -> str:
    """Return the picture of a Mermaid text as an SVG element in the theme's colours."""
    chart = parse(text)
    boxes = places(chart)
    height = len(chart.floors) * (TITLE + HEIGHT + GAP) - GAP + 4
    step = TITLE + HEIGHT + GAP
    lines = [
        f'<div class="flowchart"><svg viewBox="0 -4 {WIDTH} {height + 6}" role="img" aria-label="Folders and their imports">',
        _TIP,
        *(
            f'<rect class="floor" x="0" y="{step * number - 2}" width="{WIDTH}" height="{TITLE + HEIGHT + 8}" rx="5"/>'
            for number in range(len(chart.floors))
        ),
        *(f'<path class="arrow" marker-end="url(#tip)" d="{_arrow(boxes[a], boxes[b])}"/>' for a, b in chart.arrows),
    ]
    for number, (title, nodes) in enumerate(chart.floors):
        lines.append(f'<text class="title" x="8" y="{step * number + 13}">{escape(title)}</text>')
        for node, label in nodes.items():
            box = boxes[node]
            lines.append(
                f'<rect class="node" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{HEIGHT}" rx="4"/>'
                f'<text x="{box.middle:.0f}" y="{box.y + 18:.0f}" text-anchor="middle">{escape(label)}</text>'
            )
    return "\n".join([*lines, "</svg></div>"])
