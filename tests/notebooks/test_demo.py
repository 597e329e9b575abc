"""make demo, as a newcomer runs it: exit status, the table, the executed notebook and the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.jupyter
@pytest.mark.timeout(600)
def test_demo_trains_and_says_what_it_measured() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "demo.py")], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"^  ([\w/ ]+?)  +(.+)$", done.stdout, re.MULTILINE))
    assert rows["ranks"] == "4"
    assert rows["epochs"] == "20"
    assert float(rows["test accuracy"].rstrip("%")) >= 97
    assert len(rows["samples/s per rank"].split(", ")) == 4
    assert float(rows["allreduce"].split()[0]) > 0
    notebook = nbformat.read(ROOT / "build" / "demo" / "01_quickstart.ipynb", as_version=4)
    assert not [o for c in notebook.cells for o in c.get("outputs", []) if o.get("ename") not in (None, "ValueError")]
    page = (ROOT / "build" / "demo" / "01_quickstart.html").read_text()
    assert "data:image/svg+xml" in page or "<svg" in page, "the page has no picture of the dashboard"
    assert "[0-3] tensor([6., 6., 6.])" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_stored_notebooks_are_executed_and_use_our_kernel(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "hvd_kernel"
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1)), "run it from the top and store the outputs"
