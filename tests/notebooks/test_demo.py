"""make demo, as a newcomer runs it: exit status, the table, the executed notebook with its outputs, and the page."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
from hvdtest.notebooks import ALL, ROOT, outputs

BUILD = ROOT / "build" / "demo"


@pytest.mark.jupyter
@pytest.mark.timeout(600)
def test_demo_trains_and_prints_its_measurements() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "demo.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"^  ([\w/ ]+?)  +(.+)$", done.stdout, re.MULTILINE))
    assert rows["ranks"] == "4"
    assert rows["epochs"] == "20"
    assert float(rows["test accuracy"].rstrip("%")) >= 97
    assert len(rows["samples/s per rank"].split(", ")) == 4
    assert float(rows["bus bandwidth"].split()[0]) > 0
    assert outputs(BUILD / "01_quickstart.ipynb") == outputs(ROOT / "notebooks" / "01_quickstart.ipynb")
    page = (BUILD / "01_quickstart.html").read_text()
    assert "data:image/svg+xml" in page or "<svg" in page, "the page has no picture of the dashboard"
    assert "[0-3] tensor([6., 6., 6.])" in page


def test_stored_notebooks_are_executed_and_use_our_kernel() -> None:
    assert ALL
    notebooks = {path.name: nbformat.read(path, as_version=4) for path in ALL}
    kernels = {name: notebook.metadata.kernelspec.name for name, notebook in notebooks.items()}
    assert {name: kernel for name, kernel in kernels.items() if kernel != "hvd_kernel"} == {}
    counts = {name: [c.execution_count for c in b.cells if c.cell_type == "code"] for name, b in notebooks.items()}
    wrong = {name: found for name, found in counts.items() if found != list(range(1, len(found) + 1))}
    assert wrong == {}, "run them from the top and store the outputs"


def test_notebooks_need_nothing_of_the_tests() -> None:
    sources = {path.name: [cell.source for cell in nbformat.read(path, as_version=4).cells] for path in ALL}
    sources |= {path.name: [path.read_text()] for path in (ROOT / "notebooks").rglob("*.py")}
    assert not [name for name, parts in sources.items() if re.search(r"\bhvdtest\b|\.\./tests", "".join(parts))]
