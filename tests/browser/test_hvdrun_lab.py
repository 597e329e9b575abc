"""The whole product, as a person sees it: JupyterLab, our kernel, a ``%%hvdrun`` cell that trains, and a panel whose numbers move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from hvdtest.lab import ROOT, Lab, Notebook, panel
from playwright.sync_api import Browser as Chromium

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
SHOT = ROOT / "build" / "lab" / "hvdrun.png"
TRAIN = """%%hvdrun -np 4
import os
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
torch.manual_seed(rank)
batch, target = torch.randn(32, 64), torch.randint(0, 10, (32,))
while hvd.allreduce(torch.tensor(float(os.path.exists("seen"))), name="seen by", op=hvd.Sum) == 0:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()
    hvd.log(loss=loss)
print("trained")"""

PANEL = panel(cell=2)
STEPS = f"""() => {{
    const at = [...{PANEL}.querySelectorAll('thead th')].findIndex(head => head.textContent.trim() === 'step');
    return [...{PANEL}.querySelectorAll('tbody tr')].map(row => row.children[at].textContent);
}}"""


def write(folder: Path) -> Path:
    spec = {"name": "hvd_kernel", "display_name": "Python 3 (hvd)", "language": "python"}
    cells = [nbformat.v4.new_code_cell("%%hvdrun -np 4\nimport torch\nrank"), nbformat.v4.new_code_cell(TRAIN)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), folder / "train.ipynb")
    return folder / "train.ipynb"


def steps(notebook: Notebook) -> list[int]:
    """The step of every rank, as the table of the panel shows it."""
    cells: Any = notebook.page.evaluate(STEPS)
    return [int(text.replace(",", "")) for text in cells]


def test_a_cell_trains_and_the_panel_moves_while_it_runs(lab: Lab, place: Path) -> None:
    with lab.browser(height=1250) as page:
        notebook = page.open(write(place))
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
def test_the_end_of_lab_is_the_end_of_its_ranks(chromium: Chromium, tmp_path: Path) -> None:
    with Lab(tmp_path, chromium) as lab, lab.browser() as page:
        notebook = page.open(write(tmp_path))
        notebook.run(0)
        notebook.wait("document.querySelectorAll('.jp-InputPrompt')[0].textContent.includes('[1]')")
        family = lab.family()
        assert len(lab.running("hvd_kernel.worker")) >= 4
    _, left = psutil.wait_procs(family, timeout=60)
    assert left == [], "JupyterLab is closed, but some of its kernels or ranks still run"
