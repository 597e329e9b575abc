"""nbval runs the notebooks and compares their stored outputs. By default test_demo.py alone runs the quickstart.

A notebook of a framework, or of Spark, that .venv has not runs in an environment that has it; that of Keras in one without torch.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from hvdtest.environments import environment
from hvdtest.notebooks import ALL, ROOT, SANITIZER, kernels_of, run

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(600)]

NBVAL = ["pytest", "-q", "-p", "no:nbval", "-p", "nbval.plugin", "--nbval", "-p", "no:cacheprovider"]
PATIENT = ["--timeout", "300", "--nbval-kernel-startup-timeout", "200"]
ELSEWHERE = {"06_keras": "tf221", "07_spark_pipeline": "spark", "08_any_framework": "keras_torch_jax"}
HERE = [path for path in ALL if path.stem not in ELSEWHERE]
# The first runs in test_demo.py; tests/jupyter has the parts of the others.
LONG = {"01_quickstart", "05_elastic", "09_torch_distributed"}
ONCE = [pytest.param(path, marks=pytest.mark.nightly if path.stem in LONG else (), id=path.stem) for path in HERE]


@pytest.mark.parametrize("notebook", ONCE)
def test_nbval_finds_the_stored_outputs(notebook: Path) -> None:
    run(*NBVAL, "--nbval-sanitize-with", str(SANITIZER), *PATIENT, str(notebook))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ELSEWHERE)
def test_nbval_finds_them_in_a_separate_environment(name: str, tmp_path: Path) -> None:
    kernels = kernels_of(environment(ELSEWHERE[name]), tmp_path)
    notebook = str(ROOT / "notebooks" / f"{name}.ipynb")
    run(*NBVAL, "--nbval-sanitize-with", str(SANITIZER), *PATIENT, notebook, JUPYTER_PATH=str(kernels))


@pytest.mark.nightly
def test_nbval_notices_an_output_that_has_changed(tmp_path: Path) -> None:
    (path,) = (path for path in ALL if path.stem == "03_a_day")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "good morning" in cell.source]
    notebook.cells[0].outputs[0]["text"] = "[0-3] good evening\n"
    nbformat.write(notebook, tmp_path / "changed.ipynb")
    with pytest.raises(AssertionError, match="good evening"):
        run(*NBVAL, *PATIENT, str(tmp_path / "changed.ipynb"))
