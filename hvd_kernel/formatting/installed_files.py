"""Installed files, of Python and of the environment's packages, as opposed to the user's code."""

from __future__ import annotations

import os
import sysconfig

FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of installed files, with a separator at the end."""


def is_installed(file: str) -> bool:
    """Return whether a code object's file name is an installed file, or not a file at all (``<string>``)."""
    return file.startswith((*FOLDERS, "<"))
