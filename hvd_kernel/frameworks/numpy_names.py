"""Names that NumPy 1.24 removed, restored for older frameworks: MXNet uses them when it is imported."""

from __future__ import annotations

import importlib

REMOVED = {"bool": bool, "complex": complex, "float": float, "int": int, "object": object, "str": str}


def restore() -> None:
    """Restore ``numpy.bool`` and similar names as Python's types. NumPy 2 is left unchanged: MXNet needs more there."""
    numpy = importlib.import_module("numpy")
    if numpy.__version__.startswith("1."):
        for name, cls in REMOVED.items():
            vars(numpy).setdefault(name, cls)
