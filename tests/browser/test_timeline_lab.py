"""The live timeline in JupyterLab: lanes of real ranks, moved by keys, a bar's words, the files, what stays after the end."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from hvdtest.lab import ROOT, Lab, panel

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400), pytest.mark.nightly]
SHOTS = ROOT / "build" / "lab"
TRAIN = """%%hvdrun -np 3
import os, time
while hvd.allreduce(torch.tensor(float(os.path.exists("seen"))), name="seen by", op=hvd.Sum) == 0:
    time.sleep(0.06 if rank == 2 else 0.02)
    hvd.allreduce(torch.ones(500_000), name="grad/conv1")"""
PANEL = panel(cell=2)
CANVAS = ".hvd-lanes-canvas"
OPEN = ".hvd-lanes:not([hidden])"  # cell 1 has a panel too where it took its time: it has no timeline


def test_lanes_are_live_are_moved_and_stay(lab: Lab, place: Path) -> None:
    spec = {"name": "hvd_kernel", "display_name": "Python 3 (hvd)", "language": "python"}
    cells = [nbformat.v4.new_code_cell("%%hvdrun -np 3\nimport torch\nrank"), nbformat.v4.new_code_cell(TRAIN)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), place / "train.ipynb")
    with lab.browser(height=1250) as browser:
        notebook = browser.open(place / "train.ipynb")
        notebook.run_all()
        notebook.wait(f"{PANEL}?.querySelector('.hvd-lanes')?.hidden === false")
        page = notebook.page
        page.click(f"{OPEN} summary")
        notebook.wait(f"{PANEL}.querySelector('.hvd-tool[aria-pressed=true]') !== null")  # it has been drawn
        page.focus(f"{OPEN} {CANVAS}")
        page.keyboard.press("Shift+ArrowLeft")
        said = f"{PANEL}.querySelector('.hvd-lanes-said').textContent"
        notebook.wait(f"{said}.startsWith('rank 0: ')")
        for _ in range(20):
            page.keyboard.press("Shift+ArrowLeft")
            words = page.evaluate(said)
            if "grad/conv1" in words and "waited" in words:
                break
        assert words.startswith("rank 0: allreduce 'grad/conv1' · 2 MB · ")
        assert words.endswith(" for rank 2"), words
        assert "GB/s" in words
        page.keyboard.press("End")
        notebook.shoot(SHOTS / "timeline.png", f".hvd:has({OPEN})")
        for _ in range(4):
            page.keyboard.press("+")
        notebook.shoot(SHOTS / "timeline-near.png", f".hvd:has({OPEN})")
        with page.expect_download() as saved:
            page.click(f"{OPEN} .hvd-tool:text-is('JSON')")
        events = json.loads(Path(saved.value.path()).read_text())
        assert {event["pid"] for event in events} == {0, 1, 2}
        assert {event["cat"] for event in events if event["ph"] == "X"} >= {"program", "negotiate", "late", "transfer"}
        (place / "seen").touch()
        notebook.wait(f"{PANEL}?.dataset.kind === 'good'")
        notebook.save()
        page.wait_for_selector(".jp-mod-dirty", state="detached")
        page.reload()
        notebook.wait(f"{PANEL}?.dataset.kind === 'good'")
        page.click(f"{OPEN} summary")
        page.focus(f"{OPEN} {CANVAS}")
        page.keyboard.press("Shift+ArrowLeft")
        notebook.wait(f"{said}.startsWith('rank 0: ')")
        notebook.shoot(SHOTS / "timeline-stored.png", f".hvd:has({OPEN})")
        assert browser.errors == []
        assert browser.strangers == []
