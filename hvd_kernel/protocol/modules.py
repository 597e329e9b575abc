"""Imported modules, looked up by name: code that must not import a framework asks whether the program has."""

from __future__ import annotations

import sys
from typing import Any


def loaded(name: str) -> Any:
    """Return a module if it has been imported; None otherwise, and while another thread is still importing it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
