"""Registry of the factory that makes the rank membership of a notebook's cell for ``elastic.run``. A shared leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_make: Callable[[], Any] | None = None


def provide(make: Callable[[], Any] | None) -> None:
    """Register the factory of this process's ``elastic.membership.RankMembership``; None: unregister it."""
    global _make  # noqa: PLW0603 - of the process
    _make = make


def provided() -> Any:
    """Make and return the membership; None without a registered factory."""
    return None if _make is None else _make()


def is_provided() -> bool:
    """Return whether a factory is registered: this process is a rank of a notebook."""
    return _make is not None
