"""Origins of variables: the line of a cell that has assigned a name last, found when somebody asks.

What a function assigns as ``global`` is not seen, nor whether the line was reached in a cell that failed.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator

MOST = 500
"""Cells that are kept, the latest ones."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PUSHED = "pushed"


class Origins:
    """What has assigned names on this rank, in order."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, str | tuple[str, ...]]] = deque(maxlen=MOST)

    def ran(self, cell: int, code: str) -> None:
        """Take a cell that runs from here on; its code is read when somebody asks."""
        self._events.append((cell, code))

    def pushed(self, names: Iterable[str]) -> None:
        """Take names that the notebook has sent."""
        self._events.append((0, tuple(names)))

    def places(self) -> dict[str, str]:
        """Return by name where it was assigned last: ``cell 3:2``, ``pushed``."""
        found: dict[str, str] = {}
        for cell, what in self._events:
            if isinstance(what, tuple):
                found |= dict.fromkeys(what, PUSHED)
            else:
                found |= {name: f"cell {cell}:{line}" for name, line in assigned(what)}
        return found


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
