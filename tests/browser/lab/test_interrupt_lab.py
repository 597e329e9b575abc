"""The interrupt button in JupyterLab, pressed while ranks wait for one that never comes; the panel says for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, panel
from hvdtest.notebook_files import written

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
SHOT = ROOT / "build" / "lab" / "interrupt.png"
HANG = """%%hvdrun
def load():
    time.sleep(600)
hvd.allreduce(torch.ones(4), name="<b>grad</b>/conv1") if rank != 3 else load()"""
CELLS = ["%%hvdrun -np 4\nimport time, torch\nkept = rank + 1", HANG]
SOUND = '%%hvdrun\nint(hvd.allreduce(torch.tensor([kept]), name="again", op=hvd.Sum))'
WAIT = f"{panel(cell=2)}?.querySelector('.hvd-wait')"
SAID = r"/^allreduce '<b>grad<\/b>\/conv1' waits for rank 3, which is in cell \d+:2 load\(\): time\.sleep\(600\)$/"


def test_b1_c5_button_interrupts_an_explained_collective(lab: Lab, place: Path) -> None:
    with lab.browser() as page:
        notebook = page.open(written(place / "hang.ipynb", *CELLS, SOUND))
        notebook.page.click(".jp-Cell >> nth=0")
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait("document.querySelectorAll('.jp-InputPrompt')[0].textContent.includes('[1]')", 120)
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait(f"{SAID}.test({WAIT}?.textContent.trim())")
        notebook.shoot(SHOT)
        notebook.page.click("[data-command='notebook:interrupt-kernel'], [title^='Interrupt the kernel']")
        notebook.wait("document.body.textContent.includes('ranks 0-3 interrupted, variables are kept')")
        notebook.wait(f"{WAIT}.hidden")
        notebook.shoot(SHOT.with_stem("interrupt-after"))
        notebook.page.click(".jp-Cell >> nth=2")
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait("document.body.textContent.includes('[0-3] 10')")
        assert page.errors == []
