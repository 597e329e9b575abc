"""Whoever knows the ranks of a notebook's cell better than ``elastic.run`` does registers it here. A shared leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_make: Callable[[], Any] | None = None


def provide(make: Callable[[], Any] | None) -> None:
    """Have this make the ``elastic.membership.RankMembership`` of this process; None: nobody does."""
    global _make  # noqa: PLW0603 - of the process
    _make = make


def provided() -> Any:
    """Return the membership; None where nobody provides one."""
    return None if _make is None else _make()


def is_provided() -> bool:
    """Tell whether somebody provides one: this is a rank of a notebook."""
    return _make is not None
