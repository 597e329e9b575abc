"""Origins of variables: the line of a cell that assigned a name last, determined on request.

Assignments to ``global`` names inside functions are not considered, nor whether a failed cell reached the line.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MOST = 500
"""Number of recorded cells, the latest ones."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PUSHED = "pushed"


@dataclass
class RunCell:
    """Cell that has run on this rank, or whose definitions were copied from another rank."""

    number: int
    code: str  # as IPython has transformed it
    raw: str = ""
    file: str = ""  # file name in tracebacks
    failed: bool = False

    @property
    def folder(self) -> str:
        """The folder of the files of all cells."""
        return self.file.rpartition("/")[0] + "/"


class Origins:
    """Record of the cells and pushes that assigned names on this rank, in order."""

    def __init__(self) -> None:
        self._events: deque[RunCell | tuple[str, ...]] = deque(maxlen=MOST)

    def ran(self, number: int, code: str, raw: str = "", file: str = "") -> RunCell:
        """Record a cell that is about to run; its code is parsed on request."""
        cell = RunCell(number, code, raw, file)
        self._events.append(cell)
        return cell

    def pushed(self, names: Iterable[str]) -> None:
        """Record names that the notebook has sent."""
        self._events.append(tuple(names))

    def cells(self) -> list[RunCell]:
        """Return the latest cells, in order."""
        return [event for event in self._events.copy() if isinstance(event, RunCell)]

    def places(self) -> dict[str, str]:
        """Return the origin of each name: ``cell 3:2``, ``pushed``."""
        places: dict[str, str] = {}
        for event in self._events:
            if isinstance(event, RunCell):
                places |= {name: f"cell {event.number}:{line}" for name, line in assigned(event.code)}
            else:
                places |= dict.fromkeys(event, PUSHED)
        return places


def assigned(code: str) -> Iterator[tuple[str, int]]:
    """Yield the names that code assigns outside functions, with their lines. Pure.

    Example: ``[*assigned("a, b = 1, 2")]`` is ``[("a", 1), ("b", 1)]``.
    """
    try:
        left: list[ast.AST] = [ast.parse(code)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while left:
        node = left.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        if not isinstance(node, _SCOPES):
            children = [child for child in ast.iter_child_nodes(node) if _leaks(node, child)]
            left += reversed(children)


def _leaks(node: ast.AST, child: ast.AST) -> bool:
    """Return whether assignments in a child are visible outside: a comprehension's own variables are not."""
    return not (isinstance(node, _COMPREHENSIONS) and isinstance(child, ast.comprehension))
