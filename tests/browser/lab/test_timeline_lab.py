"""The live timeline in JupyterLab: lanes of real ranks, panning by mouse and keys, tooltips, files, and the final picture.

And what limits the run, under its figures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, panel, write_notebook
from playwright.sync_api import Page

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


def test_lanes_update_live_pan_and_remain(lab: Lab, place: Path) -> None:
    with lab.browser(height=1250) as browser:
        notebook = browser.open(write_notebook(place / "train.ipynb", "%%hvdrun -np 3\nimport torch\nrank", TRAIN))
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
        events = json.loads(_saved(page, "JSON"))
        assert {event["pid"] for event in events} == {0, 1, 2}
        assert {event["cat"] for event in events if event["ph"] == "X"} >= {"program", "negotiate", "late", "transfer"}
        limits = f"{PANEL}.querySelector('.hvd-limits').textContent"
        notebook.wait(f"{limits}.startsWith('limited by rank 2, slow ') && {limits}.includes('bus bandwidth ')")
        notebook.shoot(SHOTS / "limits.png", f".hvd:has({OPEN})")
        (place / "seen").touch()
        notebook.wait(f"{PANEL}?.dataset.kind === 'good'")
        notebook.save()
        notebook.reload()
        notebook.wait(f"{PANEL}?.dataset.kind === 'good'")
        page.click(f"{OPEN} summary")
        page.focus(f"{OPEN} {CANVAS}")
        page.keyboard.press("Shift+ArrowLeft")
        notebook.wait(f"{said}.startsWith('rank 0: ')")
        notebook.shoot(SHOTS / "timeline-stored.png", f".hvd:has({OPEN})")
        _move_by_mouse(page)
        assert _saved(page, "PNG").startswith(b"\x89PNG")
        assert browser.errors == []
        assert browser.strangers == []


def _move_by_mouse(page: Page) -> None:
    """Zoom about the pointer with the wheel; drag to the right to show earlier times."""
    page.focus(f"{OPEN} {CANVAS}")
    page.keyboard.press("Home")
    whole = _ticks(page)
    _middle(page)
    for _ in range(8):
        page.mouse.wheel(0, -100)
    near = _ticks(page)
    assert near[-1] - near[0] < (whole[-1] - whole[0]) / 2
    assert page.get_attribute(f"{OPEN} .hvd-tool:text-is('follow')", "aria-pressed") == "false"
    x, y = _middle(page)
    page.mouse.down()
    page.mouse.move(x + 200, y)
    page.mouse.up()
    assert _ticks(page)[0] < near[0]


def _middle(page: Page) -> tuple[float, float]:
    """Go to the middle of the upper lane, with the focus on it."""
    page.focus(f"{OPEN} {CANVAS}")
    box = page.locator(f"{OPEN} {CANVAS}").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    page.mouse.move(x, y)
    return x, y


def _ticks(page: Page) -> list[float]:
    """Return the seconds on the visible axis, as in the picture that the page saves."""
    return [float(at) for at in re.findall(r">([0-9.]+) s<", _saved(page, "SVG").decode())]


def _saved(page: Page, kind: str) -> bytes:
    with page.expect_download() as saved:
        page.click(f"{OPEN} .hvd-tool:text-is('{kind}')")
    return Path(saved.value.path()).read_bytes()
