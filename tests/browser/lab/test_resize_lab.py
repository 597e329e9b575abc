"""The number of ranks, changed on the panel in JupyterLab during a cell in elastic.run, which continues with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, panel, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400), pytest.mark.nightly]
SHOTS = ROOT / "build" / "lab"
TRAIN = """%%hvdrun -np 2
import time, torch
state = hvd.elastic.ObjectState(step=0, sizes=[])
@hvd.elastic.run
def train(state):
    while state.sizes != [2, 3, 1]:
        there = int(hvd.allreduce(torch.ones(1 << 16), op=hvd.Sum, name="grad")[0].item())
        state.sizes = state.sizes + [there] * (state.sizes[-1:] != [there])
        state.step += 1
        hvd.log(loss=2 / (1 + state.step / 40) + hvd.rank() / 8)
        time.sleep(0.02)
        state.commit()
    return state.sizes, hvd.size()
train(state)"""
PANEL = panel(cell=1)
SIZE = f"{PANEL}?.querySelector('.hvd-size')"
STATES = f"[...({PANEL}?.querySelectorAll('tbody .hvd-state') ?? [])].map(each => each.textContent).join()"
MARKS = f"({PANEL}?.querySelector('.hvd-marks')?.textContent ?? '')"
CONTROL = ".hvd-size"


def test_b8_panel_resizes_a_running_cell(lab: Lab, place: Path) -> None:
    with lab.browser() as page:
        notebook = page.open(write_notebook(place / "train.ipynb", TRAIN))
        notebook.page.click(".jp-Cell >> nth=0")
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait(f"{SIZE} && !{SIZE}.hidden && {SIZE}.querySelector('output').textContent === '2'", 180)
        notebook.page.click(f"{CONTROL} [aria-label='one rank more']")
        notebook.wait(f"{SIZE}.querySelector('.hvd-apply').textContent === 'resize to 3'")
        notebook.shoot(SHOTS / "resize-picked.png")
        notebook.page.click(f"{CONTROL} .hvd-apply")
        notebook.wait(f"{MARKS}.includes('rank 2 joined, generation 1')", 180)
        notebook.wait(f"{SIZE}.querySelector('output').textContent === '3' && {STATES}.split(',').length === 3")
        notebook.wait(f"!/starting|left/.test({STATES})")
        notebook.shoot(SHOTS / "resize-grown.png")
        for _ in range(2):
            notebook.page.click(f"{CONTROL} [aria-label='one rank less']")
        notebook.page.click(f"{CONTROL} .hvd-apply")
        notebook.wait("document.body.textContent.includes('[0] ([2, 3, 1], 1)')", 120)
        notebook.wait(f"{SIZE}.hidden && {STATES} === 'done,left,left'")
        notebook.wait(f"{MARKS}.includes('ranks 1-2 left, generation 2')")
        notebook.shoot(SHOTS / "resize-shrunk.png")
        assert page.errors == []
