"""Installed files: Python's own and the packages' of this environment, and what lies elsewhere, the user's own code."""

from __future__ import annotations

import os
import sysconfig

FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where they lie, each with a separator at its end."""


def is_installed(file: str) -> bool:
    """Tell whether a code object's file name is such a file's, or none of a file: ``<string>``."""
    return file.startswith((*FOLDERS, "<"))
