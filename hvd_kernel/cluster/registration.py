"""Registration of ranks: only processes that we start as a rank may register; only the kernel may report a death.

Otherwise any process with the engines' key could take the place of a living rank. Standard library only: the supervisor
imports this before anything slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

LOST = "hvd_lost"
"""Message type, from the notebook's kernel only: a rank's process has exited. Content: id, uuid, secret."""

NUMBERS = "hvd_numbers"
"""Message type, from the kernel only: the ranks after a resize. Content: ranks (uuid -> id), secret."""

SECRET = "hvd_secret"  # noqa: S105 - the name of an entry
"""Entry of the kernel's connection information, in addition to those of ipyparallel's client: proves the kernel."""

_expected: set[int] = set()
_on_all: list[Callable[[], None]] = []


def expect(ranks: Iterable[int]) -> None:
    """Let one process register as each of these ranks. Any thread."""
    _expected.update(ranks)


def expect_none() -> None:
    """Withdraw all expected registrations, because the ranks were renumbered. Any thread."""
    _expected.clear()


def admit(rank: object) -> bool:
    """Return whether a process may register as this rank: once for each that was expected."""
    if not isinstance(rank, int) or rank not in _expected:
        return False
    _expected.discard(rank)
    if not _expected:
        while _on_all:
            _on_all.pop()()
    return True


def on_all(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, in the controller's thread, when all expected ranks have registered."""
    _on_all.append(callback)
