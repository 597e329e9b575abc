"""Origins of variables: the line of a cell that has assigned a name last, found when somebody asks.

What a function assigns as ``global`` is not seen, nor whether the line was reached in a cell that failed.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MOST = 500
"""Cells that are kept, the latest ones."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PUSHED = "pushed"


@dataclass
class RunCell:
    """A cell that has run on this rank, or that has defined what another rank's cell did."""

    number: int
    code: str  # as IPython has transformed it
    raw: str = ""
    file: str = ""  # in which tracebacks place it
    failed: bool = False

    @property
    def folder(self) -> str:
        """The folder of the files of all cells."""
        return self.file.rpartition("/")[0] + "/"


class Origins:
    """What has assigned names on this rank, in order."""

    def __init__(self) -> None:
        self._events: deque[RunCell | tuple[str, ...]] = deque(maxlen=MOST)

    def ran(self, number: int, code: str, raw: str = "", file: str = "") -> RunCell:
        """Record a cell that runs from here on; its code is read on request."""
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
        """Return by name where it was assigned last: ``cell 3:2``, ``pushed``."""
        places: dict[str, str] = {}
        for event in self._events:
            if isinstance(event, RunCell):
                places |= {name: f"cell {event.number}:{line}" for name, line in assigned(event.code)}
            else:
                places |= dict.fromkeys(event, PUSHED)
        return places


def assigned(code: str) -> Iterator[tuple[str, int]]:
    """Yield the names that code assigns where it stands, not inside functions, with their lines. Pure.

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
            children = [each for each in ast.iter_child_nodes(node) if _leaks(node, each)]
            left += reversed(children)


def _leaks(node: ast.AST, child: ast.AST) -> bool:
    """Whether what a part assigns is seen outside: a comprehension's own variables are not."""
    return not (isinstance(node, _COMPREHENSIONS) and isinstance(child, ast.comprehension))
