"""A notebook whose number of ranks is a parameter of papermill; its saved output is readable without any script."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbformat
import pytest
from hvdtest.notebooks import run
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

TRAIN = "%%hvdrun -np {np}\nfor step in range(3):\n    hvd.log(loss=1 / (1 + step))\nprint('trained')\nhvd.size()"
PICTURE = "%%hvdrun\nfrom IPython.display import HTML, display\nif rank == 0:\n    display(HTML('<b>bold</b>'))"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that papermill has written."""
    folder = tmp_path_factory.mktemp("papermill")
    notebook = new_notebook(cells=[new_code_cell("np = 4", metadata={"tags": ["parameters"]})])
    notebook.cells += [new_code_cell(TRAIN), new_code_cell(PICTURE)]
    notebook.metadata.kernelspec = {"name": "hvd_kernel", "display_name": "hvd_kernel", "language": "python"}
    nbformat.write(notebook, folder / "in.ipynb")
    options = ["--no-progress-bar", "--log-level", "ERROR", "--start-timeout", "200", "-p", "np", "2"]
    run("papermill", *options, str(folder / "in.ipynb"), str(folder / "out.ipynb"))
    return folder / "out.ipynb"


def test_parameter_sets_the_number_of_ranks(executed: Path) -> None:
    trained, shown = nbformat.read(executed, as_version=4).cells[-2:]
    panel, text, result = trained.outputs
    assert text.text == "[0-1] trained\n"
    assert result.data == {"text/plain": "[0-1] 2"}
    assert set(panel.data) == {"image/svg+xml", "text/plain"}
    assert panel.data["text/plain"] == "hvd dashboard: 2 ranks"
    assert panel.metadata["hvd"]["ranks"] == [0, 1]
    assert [set(output.data) for output in shown.outputs] == [{"text/plain"}, {"text/html", "text/plain"}]


def test_page_of_a_saved_notebook_has_no_script(executed: Path) -> None:
    run("nbconvert", "--to", "html", "--template", "basic", "--output", "page", str(executed))
    page = executed.with_name("page.html").read_text()
    (picture,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)
    svg = base64.b64decode(picture).decode()
    assert "loss" in svg
    assert "[0-1] trained" in page
    assert "<b>bold</b>" in page
    assert "<script" not in page + svg
