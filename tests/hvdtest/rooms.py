"""The import graph of the folders as a Mermaid picture: that of docs/architecture.md, drawn from imports and includes.

``PYTHONPATH=tests python -m hvdtest.rooms`` prints it; tests/unit/house/test_architecture_page.py compares.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping

from hvdtest.offenders import NATIVE_SUFFIXES, PRODUCT, ROOT, circles, imports, includes, module, sources

FLOORS = {  # title -> rooms, from top to bottom; each room once
    "notebook": ("kernel", "magics", "widgets"),
    "scripts": ("bench", "spark", "ray", "launch"),
    "notebook and scripts": ("cluster", "jobs"),
    "frameworks, in a rank": ("integrations", "torch", "tensorflow", "keras", "mxnet", "jax", "numpy"),
    "a rank": ("worker", "compat", "elastic", "core"),
    "everywhere": ("diagnosis", "frameworks", "tracking", "processes"),
    "native": ("native/python", "native/tf", "native/mxnet", "native/jax", "native/c_api", "native/engine"),
    "native, below": (
        "native/cuda",
        "native/mpi",
        "native/collective",
        "native/transport",
        "native/tensor",
        "native/base",
    ),
}
EVERYWHERE = {"errors", "formatting", "protocol", "settings", "version"}
"""Below all others, and imported by nearly all: arrows to them would hide the rest."""
ASIDE = {"__init__", "data", "native/bench"}
"""No part of the building: the front door, a module of Horovod's that is empty, a benchmark."""
EXTENSION = {"core": "native/python", "tensorflow": "native/tf", "mxnet": "native/mxnet", "jax": "native/jax"}
"""Who loads a compiled library: it is no import that a source file shows."""

Edges = dict[str, set[str]]


def edges() -> Edges:
    """Room -> the rooms that its files import or include, without itself; native rooms are called native/NAME."""
    found: Edges = defaultdict(set)
    for path in sources(*PRODUCT):
        here = _room(module(path))
        found[here] |= {_room(target) for target, _ in imports(path) if target[0] == "hvd_kernel" and len(target) > 1}
    for path in sources("native", suffixes=NATIVE_SUFFIXES):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 2:
            found[f"native/{parts[1]}"] |= {f"native/{included.split('/')[0]}" for included, _ in includes(path)}
    for loader, library in EXTENSION.items():
        found[loader].add(library)
    return {room: others & set(found) - {room} for room, others in found.items()}


def _room(dotted: tuple[str, ...]) -> str:
    return dotted[1] if len(dotted) > 1 else "__init__"


def merged(graph: Mapping[str, set[str]]) -> Edges:
    """Return the graph with rooms that import each other as one node, "keras + tensorflow": the result has no circle."""
    name = {room: " + ".join(sorted(circle)) for circle in circles(dict(graph)) for room in circle}
    found: Edges = defaultdict(set)
    for room, others in graph.items():
        here = name.get(room, room)
        found[here] |= {name.get(other, other) for other in others} - {here}
    return dict(found)


def reduced(graph: Mapping[str, set[str]]) -> Edges:
    """Return the graph without arrows that a longer path implies (transitive reduction)."""

    def reached(starts: Iterable[str]) -> set[str]:
        seen: set[str] = set()
        todo = list(starts)
        while todo:
            room = todo.pop()
            if room not in seen:
                seen.add(room)
                todo.extend(graph[room])
        return seen

    return {
        room: {other for other in others if other not in reached(o for each in others - {other} for o in graph[each])}
        for room, others in graph.items()
    }


def mermaid() -> str:
    """Return the picture: a frame per floor, an arrow per import that no longer path implies."""
    graph = edges()
    hidden = EVERYWHERE | ASIDE
    shown = reduced(merged({room: others - hidden for room, others in graph.items() if room not in hidden}))
    lines = ["flowchart TD"]
    for number, (title, rooms) in enumerate(FLOORS.items()):
        nodes = sorted({_node(room, shown) for room in rooms}, key=lambda node: _order(node, rooms))
        lines += [f'  subgraph floor{number}["{title}"]', *(f'    {_id(node)}["{node}"]' for node in nodes), "  end"]
    lines += [f"  {_id(room)} --> {_id(other)}" for room in sorted(shown) for other in sorted(shown[room])]
    return "\n".join(lines) + "\n"


def _node(room: str, graph: Mapping[str, set[str]]) -> str:
    return next(node for node in graph if room in node.split(" + "))


def _order(node: str, rooms: tuple[str, ...]) -> int:
    return min(rooms.index(part) for part in node.split(" + ") if part in rooms)


def _id(node: str) -> str:
    return node.replace(" + ", "_").replace("/", "_")


if __name__ == "__main__":
    sys.stdout.write(mermaid())
