"""``from polyaxon import tracking`` in ranks: ours if Polyaxon's is not installed, and always on ranks above 0.

Polyaxon's would create one run per rank; only rank 0 creates the run.

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
    """Finder of the packages and their module ``tracking``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of our stand-in, or None for other modules or if Polyaxon's is used."""
        del path, target  # of Python's interface
        if fullname not in TABLE:
            return None
        package, _, module = fullname.partition(".")
        if not module:
            return None if _real(package) else alias(fullname, TABLE[fullname])
        return None if all(map(_real, PACKAGES)) and _rank() == 0 else alias(fullname, TABLE[fullname])


def stand_ins() -> list[str]:
    """Return the names under which stand-ins are imported."""
    return [name for name, target in TABLE.items() if getattr(sys.modules.get(name), "__name__", "") == target]


def _real(package: str) -> bool:
    """Return whether this Python has the package itself; ``tracking`` needs both packages."""
    others = (finder for finder in sys.meta_path if not isinstance(finder, TrackingFinder))
    specs = (finder.find_spec(package, None) for finder in others)
    return any(spec is not None and spec.origin is not None for spec in specs)


def _rank() -> int:
    """Return this process's rank; imports late, as every Python process of a rank imports this module at its start."""
    rank: int = importlib.import_module("hvd_kernel.tracking.process").rank()
    return rank
