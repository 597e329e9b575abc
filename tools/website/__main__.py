"""Build the documentation site: ``bash .ci/docs [FOLDER]`` (make docs) writes FOLDER/html.

Everything is built from nothing, so that each build reports each warning, and a warning is an error.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from website import reference, sources


def build(folder: Path) -> int:
    """Write ``folder``/html; return the exit status."""
    began = time.monotonic()
    source, doctrees, html = (folder / name for name in ("source", "doctrees", "html"))
    for path in (source, doctrees, html):
        shutil.rmtree(path, ignore_errors=True)
    sources.write(source)
    reference.write(source / "reference")
    options = ["-q", "--fail-on-warning", "--keep-going", "-j", "auto", "-c", str(ROOT / "docs")]
    status = sphinx_build([*options, "-d", str(doctrees), str(source), str(html)])
    if not status:
        pages = sum(1 for _ in html.rglob("*.html"))
        sys.stdout.write(f"{pages} pages in {time.monotonic() - began:.0f} s: {html}/index.html\n")
    return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
