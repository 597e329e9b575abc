"""A background cell in JupyterLab: it returns at once, and its panel and output appear below the starting cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
SHOT = ROOT / "build" / "lab" / "background.png"
CELLS = [
    """%%hvdrun -np 2 --bg train
import os, time
turn = 0
while not os.path.exists("go"):
    turn += 1
    hvd.log(turn=turn)
    time.sleep(0.05)
print("trained by", rank)""",
    "import asyncio, os\nwhile not os.path.exists('seen'): await asyncio.sleep(0.05)\nprint('local', 6 * 7)",
    "%%hvdrun --bg broken\nraise ValueError('bad shard')",
    "open('go', 'w').close()",
]
OUTPUTS = "[...document.querySelectorAll('.jp-Cell')].map(c => c.querySelector('.jp-OutputArea')?.textContent ?? '')"
TURNS = """() => {
    const at = [...document.querySelectorAll('.hvd thead th')].findIndex(head => head.textContent.trim() === 'turn');
    return [...document.querySelectorAll('.hvd tbody tr')].map(row => Number(row.children[at]?.textContent));
}"""

SHOWN = """() => ({
    figures: [...document.querySelectorAll('.hvd-figure:not([hidden]) dt')].map(label => label.textContent),
    charts: [...document.querySelectorAll('.hvd-chart:not([hidden]) .hvd-tabs')].map(tabs => tabs.textContent),
    output: document.querySelector('.hvd-log').open})"""


def test_background_job_shows_its_panel_in_the_starting_cell(lab: Lab, place: Path) -> None:
    with lab.browser(height=1250) as page:
        notebook = page.open(write_notebook(place / "back.ipynb", *CELLS))
        notebook.run_all()
        notebook.wait(f"({TURNS})().length === 2 && ({TURNS})().every(turn => turn > 0)", 120)
        first = notebook.page.evaluate(TURNS)
        notebook.wait(f"({TURNS})().every((turn, rank) => turn > {first}[rank] + 10)")
        assert "local" not in notebook.page.evaluate(OUTPUTS)[1], "the notebook's own cell awaited all the while"
        shown = {"figures": ["turn"], "charts": ["turn"], "output": True}
        assert notebook.page.evaluate(SHOWN) == shown, "nothing stands empty for what a cell has not"
        notebook.shoot(SHOT)
        (place / "seen").touch()
        for cell, end in enumerate(("[0] trained by 0\n[1] trained by 1\n", "local 42\n", "ValueError: bad shard\n")):
            notebook.wait(f"{OUTPUTS}[{cell}].endsWith({json.dumps(end)})")
        notebook.wait(f"{OUTPUTS}[2].includes('job broken: failed: ValueError on ranks 0-1')")
        assert notebook.page.evaluate(SHOWN) == shown | {"output": False}, "the cell shows it below"
        notebook.shoot(SHOT.with_stem("background-finished"))
        notebook.page.click(".hvd-rank >> nth=1")
        notebook.wait("document.querySelector('.hvd-log').open")
        assert notebook.page.locator(".hvd-line:visible").all_text_contents() == ["[1]trained by 1"]
        train, local, _, _ = notebook.page.evaluate(OUTPUTS)
        assert "job train on ranks 0-1: %hvdjobs, %hvdcancel train\n" in train
        assert local == "local 42\n"
        assert page.errors == []
