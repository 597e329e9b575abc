"""A .pth file for ``import horovod`` in every Python of an environment: its text, and the folders for it.

Python runs a line of such a file that begins with ``import`` at each start; ``later.py`` is what it runs here.
"""

from __future__ import annotations

import ast
import os
import site
import sysconfig
from pathlib import Path

NAME = "hvd_kernel_horovod.pth"
MODULE = "hvd_kernel.compat.later"
NOTE = "# `import horovod` is hvd_kernel; `hvdrun --uninstall-horovod` takes this file away."


def text(note: str = NOTE) -> str:
    """Return what the file holds: the note, and one line of code."""
    code = _lean(Path(__file__).with_name("later.py").read_text(encoding="utf-8"))
    # Not by compile(), which would set up ``ast`` at each start: 1 ms more.
    return f"{note}\nimport sys; exec({code!r}, {{'__name__': {MODULE!r}}})\n"


def _lean(source: str) -> str:
    """Return the code without docstrings and comments: each start of Python compiles it anew, 1 ms less without."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


def folders() -> list[Path]:
    """Return where this Python reads such files: its own folder, and the user's if there is one."""
    own = Path(sysconfig.get_path("purelib"))
    return [own, Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else [own]


def writable(choice: list[Path]) -> Path:
    """Return the first that can be written to, as pip chooses; the first of all where none can."""
    return next((folder for folder in choice if os.access(folder, os.W_OK)), choice[0])
