"""Registration of ranks, and who may tell that one has ended: a process that we start as that rank; the kernel.

Whoever has the engines' key could otherwise take the place of a rank that lives. Standard library only: the supervisor
imports it before anything slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

LOST = "hvd_lost"
"""What the notebook's kernel alone may tell the hub: a rank's process has ended. Content: id, uuid, secret."""

NUMBERS = "hvd_numbers"
"""The same, when the cluster has another size: who is which rank from here on. Content: ranks (uuid -> id), secret."""

SECRET = "hvd_secret"  # noqa: S105 - the name of an entry
"""In the kernel's connection information, beside what ipyparallel's client takes: what shows that it is the kernel."""

_expected: set[int] = set()
_on_all: list[Callable[[], None]] = []


def expect(ranks: Iterable[int]) -> None:
    """Let one process register as each of these ranks. Any thread."""
    _expected.update(ranks)


def expect_nobody() -> None:
    """Let none of those register that were expected so far: ranks have other numbers now. Any thread."""
    _expected.clear()


def admit(rank: object) -> bool:
    """Tell whether a process may register as this rank, once for each that was expected."""
    if not isinstance(rank, int) or rank not in _expected:
        return False
    _expected.discard(rank)
    if not _expected:
        while _on_all:
            _on_all.pop()()
    return True


def on_all(callback: Callable[[], None]) -> None:
    """Have this called once, in the controller's thread, when all that are expected have come."""
    _on_all.append(callback)
