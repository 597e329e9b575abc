"""Who may register as a rank: a process for each time that we start one as that rank, and nobody else.

Whoever has the engines' key could otherwise take the place of a rank that lives. Standard library only: the supervisor
imports it before anything slow.
"""

from __future__ import annotations

from collections.abc import Iterable

_expected: set[int] = set()


def expect(ranks: Iterable[int]) -> None:
    """Let one process register as each of these ranks. Any thread."""
    _expected.update(ranks)


def admit(rank: object) -> bool:
    """Tell whether a process may register as this rank, once for each that was expected."""
    if not isinstance(rank, int) or rank not in _expected:
        return False
    _expected.discard(rank)
    return True
