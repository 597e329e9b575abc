"""Framework plugins: compiled libraries next to the core library, which they call through its C table."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any


def path_of(file: str) -> Path:
    """Load the core, and return the path of a library of this package."""
    return Path(str(_core().__file__)).with_name(file)


def load(file: str, framework: str) -> ctypes.CDLL:
    """Load a plugin.

    Raises
    ------
    ImportError
        The library cannot be loaded; the message has the reason.
    """
    path = path_of(file)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded, so there are no operations for {framework}: {error}") from None


def core_table() -> ctypes.c_void_p:
    """Return the core's C table (native/c_api/hvd_core.h), to be passed to a plugin."""
    return ctypes.c_void_p(_core().core_table())


def _core() -> Any:
    return importlib.import_module("hvd_kernel._native")
