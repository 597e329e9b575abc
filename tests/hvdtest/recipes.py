"""Examples of docs/extending.md: a block that begins with ```python NAME or ```diff NAME, run unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

from hvdtest.offenders import ROOT

PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(?:python|diff) (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATCHED = re.compile(r"^--- a/(\S+)$", re.MULTILINE)


def examples() -> dict[str, str]:
    return dict(BLOCK.findall(PAGE.read_text()))


def module(name: str) -> ModuleType:
    """The example as a module."""
    made = ModuleType(f"extending_{name}")
    exec(compile(examples()[name], f"{PAGE.name}:{name}", "exec"), made.__dict__)
    return made


def patched(name: str, folder: Path, *also: str) -> Path:
    """A copy of the files that the example changes, and of folders beside, with the change made in it."""
    diff = examples()[name]
    for path in [*also, *PATCHED.findall(diff)]:
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path)
        elif not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
    subprocess.run(
        ["git", "apply", "-"],
        input=diff,
        text=True,
        cwd=folder,
        check=True,
        env={"GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )
    return folder
