"""``%hvd export``: cells that trained on real ranks, as a script that hvdrun runs to the same loss, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hvdtest.kernel import Kernel
from hvdtest.offenders import ROOT

ALONE = pytest.mark.cluster(2, env={"HVDTEST_FRESH": "export"})  # a script has all cells that its ranks have run
pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(600), ALONE]
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"

MODEL = """%%hvdrun -np {n} --push seed,steps
import torch
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
"""
TRAIN = """%%hvdrun
%time torch.manual_seed(seed + rank)
for step in range(steps):
    batch = torch.randn(4, 8)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
"""
LAST = """%%hvdrun
import json
losses = json.dumps(hvd.allgather_object(loss.item().hex()))
print(losses if rank == 0 else "", end="")
"""


def run(script: Path, *arguments: str, n: int = 2) -> str:
    """Run a script on as many ranks as the notebook has; return the output of rank 0."""
    command = [sys.executable, "-P", "-m", "hvd_kernel.launch", "-np", str(n), sys.executable, "-P"]
    done = subprocess.run([*command, str(script), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return "\n".join(line.removeprefix("[0]<stdout>:") for line in done.stdout.splitlines() if line.startswith("[0]<"))


def exported(kernel: Kernel, script: Path) -> list[str]:
    """Train in cells and export them; the ranks' losses."""
    kernel.run("seed, steps, n = 3, 6, 2")
    kernel.run(MODEL, timeout=120)
    kernel.run(TRAIN)
    kernel.run("%%hvdrun --ranks 1\nraise ValueError('not in the script')", allow_error=True)
    shown: list[str] = json.loads(kernel.run(LAST).text().removeprefix("[0] "))
    said = kernel.run(f"%hvd export {script}").text()
    assert said.endswith("train.py is written: hvdrun -np 2 python train.py\n")
    assert "failed and is left out\n" in said
    return shown


@pytest.mark.nightly
def test_the_script_ends_at_the_cells_losses(kernel: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    shown = exported(kernel, script)
    assert json.loads(run(script)) == shown
    again = kernel.run(f"%hvd export {script}", allow_error=True)
    assert again.error == f"UsageError: %hvd export: {script} exists: name another file, or add --force"


@pytest.mark.nightly
def test_pushed_values_become_arguments(kernel: Kernel, tmp_path: Path) -> None:
    shown = exported(kernel, tmp_path / "train.py")
    every = run(tmp_path / "train.py", "--seed", "4")  # these ranks may have run this file's other test
    assert json.loads("[" + every.rpartition("[")[2]) != shown


@pytest.mark.cluster(4)
def test_the_first_notebook_as_a_script(kernel: Kernel, tmp_path: Path) -> None:
    cells = [cell.source for cell in nbformat.read(QUICKSTART, as_version=4).cells if cell.cell_type == "code"]
    for cell in cells:
        kernel.run(cell, timeout=300, allow_error="has a problem" in cell)
    loss = kernel.run("%%hvdrun --ranks 0\nprint(loss.item().hex(), end='')").text()
    kernel.run(f"%hvd export {tmp_path / 'train.py'}")
    assert run(tmp_path / "train.py", n=4).splitlines()[-1] == loss.removeprefix("[0] ").strip()


@pytest.mark.nightly
def test_export_needs_a_cell_that_has_run(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%hvd restart", timeout=120)
    outcome = kernel.run(f"%hvd export {tmp_path}/train.py", allow_error=True)
    assert outcome.error == "UsageError: %hvd export: no cell has run on these ranks yet"
    assert kernel.run("%hvd export", allow_error=True).error.startswith("UsageError: %hvd export: name the file")
