"""Source folder of the site: pages of docs/, notebooks, CONTRIBUTING and CHANGELOG, with links that fit their new places.

Pages stay readable on GitHub: their links are relative to the repository, and only the copies are changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\[[^\]\n]*\])\(([^)\s#:]*)(#[^)\s]*)?\)")
"""A link or picture without a scheme: text, file, anchor."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "docs/platforms/README.md": "platforms/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""File of the repository -> page of the site, if the path is not that below docs/."""
LANDING = {"README.md", "docs/README.md"}
"""Files that the landing page replaces."""


def place(file: str) -> str | None:
    """Return the path in the site of a file of the repository, or None if the site lacks it."""
    if file in MOVED:
        return MOVED[file]
    folder, _, rest = file.partition("/")
    if folder == "docs" and not rest.startswith("_"):
        return rest
    return f"tutorials/{rest}" if folder == "notebooks" and rest.endswith(".ipynb") else None


def files() -> list[str]:
    """Return the files of the repository that the site contains."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".png", ".svg", ".webp", ".json"}]
    paths = [*docs, *(ROOT / "notebooks").glob("*.ipynb"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in LANDING and place(name)]


def relink(text: str, file: str) -> str:
    """Return the text of a page with links that fit its place in the site; a link to a file that the site lacks becomes text."""
    here = place(file)
    assert here is not None, file

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if not target:
            return match[0]
        named = os.path.normpath(Path(file).parent / target)
        page = place(named)
        if page is None:
            return label[1:-1]
        relative = os.path.relpath(page, Path(here).parent)
        return f"{label}({relative}{'' if named in LANDING else anchor})"

    parts = FENCE.split(text)  # every second one is a block of code
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(parts))


def _notebook(text: str, file: str) -> str:
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = relink("".join(cell["source"]), file)
    return json.dumps(notebook)


CHANGES: dict[str, Callable[[str, str], str]] = {".md": relink, ".ipynb": _notebook}


def update(path: Path, text: str) -> None:
    """Write a file, unless it has this text already: Sphinx reads a file again whose time has changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write(folder: Path) -> None:
    """Write the source folder."""
    for file in files():
        path = folder / str(place(file))
        path.parent.mkdir(parents=True, exist_ok=True)
        change = CHANGES.get(path.suffix)
        if change:
            update(path, change((ROOT / file).read_text(), file))
        else:
            shutil.copy2(ROOT / file, path)
