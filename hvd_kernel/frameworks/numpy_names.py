"""Names that NumPy 1.24 has taken away, put back for frameworks of before: MXNet uses them when it is imported."""

from __future__ import annotations

import importlib

GONE = {"bool": bool, "complex": complex, "float": float, "int": int, "object": object, "str": str}


def put_back() -> None:
    """Let ``numpy.bool`` and the like be Python's own again. NumPy 2, with which it is no use, is left alone."""
    numpy = importlib.import_module("numpy")
    if numpy.__version__.startswith("1."):
        for name, kind in GONE.items():
            vars(numpy).setdefault(name, kind)
