"""The whole product in JupyterLab: our kernel, a ``%%hvdrun`` cell that trains, and a panel whose numbers change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from hvdtest.lab import ROOT, TRAIN, Lab, Notebook, panel, write_notebook
from playwright.sync_api import Browser as Chromium

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
SHOT = ROOT / "build" / "lab" / "hvdrun.png"
CELLS = ["%%hvdrun -np 4\nimport torch\nrank", f"%%hvdrun -np 4\n{TRAIN.replace('SEEN', 'seen')}"]

PANEL = panel(cell=2)
STEPS = f"""() => {{
    const at = [...{PANEL}.querySelectorAll('thead th')].findIndex(head => head.textContent.trim() === 'step');
    return [...{PANEL}.querySelectorAll('tbody tr')].map(row => row.children[at].textContent);
}}"""


def steps(notebook: Notebook) -> list[int]:
    """The step of every rank, as the table of the panel shows it."""
    cells: Any = notebook.page.evaluate(STEPS)
    return [int(text.replace(",", "")) for text in cells]


def test_panel_updates_while_a_cell_trains(lab: Lab, place: Path) -> None:
    with lab.browser(height=1250) as page:
        notebook = page.open(write_notebook(place / "train.ipynb", *CELLS))
        notebook.run_all()
        notebook.wait(f"{PANEL}?.querySelectorAll('tbody tr').length === 4")
        notebook.wait(f"{PANEL}.textContent.includes('running')")
        notebook.wait(f"({STEPS})().every(text => text !== '0')")
        first = steps(notebook)
        notebook.wait(f"({STEPS})().every((text, rank) => Number(text.replaceAll(',', '')) > {first}[rank])")
        assert notebook.page.evaluate(f"{PANEL}.textContent.includes('running')")
        notebook.shoot(SHOT)
        (place / "seen").touch()
        notebook.wait("document.body.textContent.includes('[0-3] trained')")
        notebook.wait(f"!{PANEL}.textContent.includes('running')")
        last = steps(notebook)
        assert len(last) == 4
        assert len(set(last)) == 1, f"the ranks took {last} steps"
        notebook.shoot(SHOT.with_stem("hvdrun-finished"))
        assert page.errors == []
        assert page.strangers == []
        assert len(lab.running("hvd_kernel.worker")) >= 4


@pytest.mark.nightly
def test_ranks_exit_when_jupyterlab_exits(chromium: Chromium, tmp_path: Path) -> None:
    with Lab(tmp_path, chromium) as lab, lab.browser() as page:
        notebook = page.open(write_notebook(tmp_path / "train.ipynb", *CELLS))
        notebook.run(0)
        notebook.wait("document.querySelectorAll('.jp-InputPrompt')[0].textContent.includes('[1]')")
        family = lab.family()
        assert len(lab.running("hvd_kernel.worker")) >= 4
    _, left = psutil.wait_procs(family, timeout=60)
    assert left == [], "JupyterLab is closed, but some of its kernels or ranks still run"
