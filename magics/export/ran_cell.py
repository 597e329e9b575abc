"""Record of a cell that ran on the ranks: its code, and as literals the values that it was given. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST = 10_000
"""Characters of a value that a script may hold."""

Literals = Mapping[str, str | None]
"""Variables as a script writes their values; None: no literal is equal to the value."""

Given = tuple[Literals, Mapping[int, Literals]]
"""What all ranks of a cell got, and what each got by itself."""


@dataclass(frozen=True)
class RanCell:
    """One cell, and what its line gave to the ranks."""

    number: int
    code: str
    ranks: tuple[int, ...] | None = None  # None: all
    pushed: Literals = field(default_factory=dict)
    dealt: Mapping[int, Literals] = field(default_factory=dict)  # what --scatter gave to each rank
    failed: bool = False


def literals(values: Mapping[str, Any]) -> Literals:
    """Write values as literals.

    Example: ``literals({"lr": 0.1, "model": nn.Linear(1, 1)})`` is ``{"lr": "0.1", "model": None}``.
    """
    return {name: _literal(value) for name, value in values.items()}


def _literal(value: Any) -> str | None:
    if not isinstance(value, bool | int | float | complex | str | bytes | list | tuple | dict | set | None):
        return None
    text = repr(value)
    try:
        same = len(text) <= _LONGEST and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, TypeError):
        return None
    return text if same else None
