"""A notebook of thirty cells with prints, figures, tracebacks, progress bars and floods: its outputs, and the tools that run it.

nbval, which the default tier has, is test_nbval.py's.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from hvdtest.notebooks import ROOT, outputs, run

NOTEBOOK = ROOT / "notebooks" / "03_a_day.ipynb"

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(600)]


def test_thirty_cells_cover_every_kind() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(cell.source.startswith("%%hvdrun") for cell in code) >= 30
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds == {"stream", "display_data"}
    tracebacks = [o.text for cell in code for o in cell.outputs if "Traceback (most recent call last)" in str(o)]
    assert [re.search(r"[A-Z]\w+Error", text)[0] for text in tracebacks] == [
        "ZeroDivisionError",
        "ValueError",
        "NameError",
    ]
    mimes = {mime for cell in code for output in cell.outputs for mime in output.get("data", {})}
    assert mimes == {"text/plain", "text/html", "image/png", "image/svg+xml"}
    assert not [cell for cell in code for output in cell.outputs if "application/vnd.jupyter" in str(output)]


@pytest.mark.nightly
def test_papermill_runs_to_the_end_and_stores_the_same(tmp_path: Path) -> None:
    """papermill reports a notebook with error outputs as failed, even if intended: this one shows its errors as text."""
    options = ["--no-progress-bar", "--log-level", "ERROR", "--start-timeout", "200"]
    run("papermill", *options, str(NOTEBOOK), str(tmp_path / "out.ipynb"))
    assert outputs(tmp_path / "out.ipynb") == outputs(NOTEBOOK)


@pytest.mark.nightly
def test_nbconvert_executes_and_stores_the_same(tmp_path: Path) -> None:
    where = ["--output-dir", str(tmp_path), "--output", "out"]
    # After a cell's reply it would continue without output that is later than 4 s.
    patient = ["--ExecutePreprocessor.iopub_timeout=200", "--ExecutePreprocessor.startup_timeout=200"]
    run("nbconvert", "--to", "notebook", "--execute", *patient, *where, str(NOTEBOOK))
    assert outputs(tmp_path / "out.ipynb") == outputs(NOTEBOOK)
    run("nbconvert", "--to", "html", *where, str(tmp_path / "out.ipynb"))
    page = (tmp_path / "out.html").read_text()
    assert "good night" in page
    assert "data:image/png;base64," in page
