"""A notebook of thirty cells with prints, figures, tracebacks, progress bars and floods, in every tool that runs notebooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "03_a_day.ipynb"

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(600)]


def run(*words: str) -> None:
    # Not as a test's own children: pytest's and our variables would change what the kernel does.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-P", "-m", *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """Without its cache of fonts, matplotlib complains on stderr while it makes one, if that takes long enough."""
    subprocess.run([sys.executable, "-P", "-c", "import matplotlib.font_manager"], check=True)


def outputs(path: Path) -> list[list[tuple[str, str]]]:
    """Of each code cell: what kind of output, and the text that does not depend on machine and moment."""
    notebook = nbformat.read(path, as_version=4)
    return [[said(o) for o in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def said(output: dict[str, object]) -> tuple[str, str]:
    kind = str(output["output_type"])
    if kind == "stream":
        text = str(output["text"])
        return kind, "speed" if "it/s]" in text else re.sub(r"\S*/ipykernel_0/", "", text)  # in TMPDIR
    if kind == "error":
        return kind, f"{output['ename']}: {output['evalue']}"
    return kind, str(output["data"]["text/plain"])  # type: ignore[index]


def test_there_are_thirty_cells_of_every_kind() -> None:
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


def test_nbval_finds_the_stored_outputs() -> None:
    sanitizer = ["--nbval-sanitize-with", "notebooks/nbval_sanitize.cfg"]
    patient = ["--timeout", "300", "--nbval-kernel-startup-timeout", "200"]
    run("pytest", "-q", "--nbval", *sanitizer, "-p", "no:cacheprovider", *patient, str(NOTEBOOK))


def test_nbval_notices_an_output_that_has_changed(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "good morning" in cell.source]
    notebook.cells[0].outputs[0]["text"] = "[0-3] good evening\n"
    nbformat.write(notebook, tmp_path / "changed.ipynb")
    with pytest.raises(AssertionError, match="good evening"):
        run("pytest", "-q", "--nbval", "-p", "no:cacheprovider", str(tmp_path / "changed.ipynb"))


def test_papermill_runs_to_the_end_and_stores_the_same(tmp_path: Path) -> None:
    """papermill calls a notebook with error outputs failed, wanted or not: this one shows its errors as text."""
    options = ["--no-progress-bar", "--log-level", "ERROR", "--start-timeout", "200"]
    run("papermill", *options, str(NOTEBOOK), str(tmp_path / "out.ipynb"))
    assert outputs(tmp_path / "out.ipynb") == outputs(NOTEBOOK)


def test_nbconvert_executes_and_stores_the_same(tmp_path: Path) -> None:
    where = ["--output-dir", str(tmp_path), "--output", "out"]
    # After a cell's reply it would go on without what is slower on its way than 4 s.
    patient = ["--ExecutePreprocessor.iopub_timeout=200", "--ExecutePreprocessor.startup_timeout=200"]
    run("nbconvert", "--to", "notebook", "--execute", *patient, *where, str(NOTEBOOK))
    assert outputs(tmp_path / "out.ipynb") == outputs(NOTEBOOK)
    run("nbconvert", "--to", "html", *where, str(tmp_path / "out.ipynb"))
    page = (tmp_path / "out.html").read_text()
    assert "good night" in page
    assert "data:image/png;base64," in page
