"""The .pth file that enables ``import horovod`` in every Python of an environment: its text, and the folders for it.

At each start Python runs the lines of such a file that begin with ``import``; the line here runs ``later.py``.
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
    """Return the contents of the file: the note and one line of code."""
    code = _lean(Path(__file__).with_name("later.py").read_text(encoding="utf-8"))
    # Source, not ast.parse() and compile() at run time: setting up ``ast`` would add 1 ms to each start.
    return f"{note}\nimport sys; exec({code!r}, {{'__name__': {MODULE!r}}})\n"


def _lean(source: str) -> str:
    """Return the code without docstrings and comments, which saves 1 ms of compilation at each start of Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


def folders() -> list[Path]:
    """Return the folders in which this Python reads .pth files: its site-packages, and the user's if enabled."""
    packages = Path(sysconfig.get_path("purelib"))
    return [packages, Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else [packages]


def writable(choice: list[Path]) -> Path:
    """Return the first writable folder, as pip chooses, or the first folder if none is writable."""
    return next((folder for folder in choice if os.access(folder, os.W_OK)), choice[0])
