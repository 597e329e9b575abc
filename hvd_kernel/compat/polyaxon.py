"""``from polyaxon import tracking`` in ranks: ours where Polyaxon's is not installed, and on ranks above 0 always.

Theirs would make a run of its own on every rank; rank 0's makes the one.

Terms.
  stand-in   our module of one of these names
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from hvd_kernel.compat.finder import alias

ROOT = "hvd_kernel.tracking.alias"
PACKAGES = ("polyaxon", "traceml")
TABLE = dict.fromkeys(PACKAGES, ROOT) | {f"{package}.tracking": f"{ROOT}.tracking" for package in PACKAGES}


class TrackingFinder(MetaPathFinder):
    """Knows the packages and their module ``tracking``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return our stand-in, or None where theirs is to be used, or another module is asked for."""
        del path, target  # of Python's interface
        if fullname not in TABLE:
            return None
        package, _, module = fullname.partition(".")
        if not module:
            return None if _real(package) else alias(fullname, TABLE[fullname])
        return None if all(map(_real, PACKAGES)) and _rank() == 0 else alias(fullname, TABLE[fullname])


def stand_ins() -> list[str]:
    """Return the names under which our stand-ins are imported."""
    return [name for name, target in TABLE.items() if getattr(sys.modules.get(name), "__name__", "") == target]


def _real(package: str) -> bool:
    """Tell whether this Python has the package itself: each needs the other one for its tracking."""
    others = (finder for finder in sys.meta_path if not isinstance(finder, TrackingFinder))
    found = (finder.find_spec(package, None) for finder in others)
    return any(spec is not None and spec.origin is not None for spec in found)


def _rank() -> int:
    """Ask only when somebody imports it: the start of every Python in a rank comes through here."""
    rank: int = importlib.import_module("hvd_kernel.tracking.process").rank()
    return rank
