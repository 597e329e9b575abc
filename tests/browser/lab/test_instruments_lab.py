"""Views of finished runs in JupyterLab: two runs overlaid, and the memory table."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hvdtest.lab import ROOT, Lab, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400), pytest.mark.nightly]
SHOTS = ROOT / "build" / "lab"
TRAIN = """%%hvdrun -np 2
import time, torch
torch.manual_seed(0)
model = torch.nn.Linear(1000, 5000, bias=False)
opt = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())

def train(steps):
    for step in range(steps):
        time.sleep(0.1)  # a batch takes its time: curves need some samples
        opt.zero_grad()
        loss = model(torch.ones(8, 1000)).square().mean()
        loss.backward()
        opt.step()
        hvd.log(loss=loss)

train(30)"""
LATEST = """import json, os
with open(os.path.join(os.environ["IPYTHONDIR"], "hvd-runs.jsonl")) as file:
    first, second = [json.loads(line)["number"] for line in file][-2:]"""  # the tests of this folder share it
CELLS = [TRAIN, "%%hvdrun\ntrain(20)", LATEST, "%hvd runs", "%hvd runs {first} {second}", "%hvd memory"]
OUTPUT = "[...document.querySelectorAll('.jp-Cell')].map(c => c.querySelector('.jp-OutputArea')?.textContent ?? '')[{}]"
PICTURE = """() => {
    const image = [...document.querySelectorAll('.jp-Cell')][4].querySelector('.jp-RenderedSVG img');
    return image?.complete && image.naturalWidth > 0 ? image.src : null;
}"""
FIT = """() => [3, 4, 5].flatMap(at => [...document.querySelectorAll('.jp-Cell')[at].querySelectorAll('pre, .jp-RenderedSVG')])
    .map(each => {
        const text = each.textContent.trimEnd(), high = parseFloat(getComputedStyle(each).lineHeight);
        const lines = text ? text.split('\\n').length : 0;
        return each.scrollWidth <= each.clientWidth && (!lines || each.clientHeight < (lines + 1.5) * high);
    })"""


def test_two_overlaid_runs_and_the_memory_table(lab: Lab, place: Path) -> None:
    with lab.browser(height=2200) as browser:
        notebook = browser.open(write_notebook(place / "runs.ipynb", *CELLS))
        notebook.run_all()
        notebook.wait(f"{OUTPUT.format(5)}.includes('(parameters)')", 300)
        listed, both = (_rows(notebook.page.evaluate(OUTPUT.format(at))) for at in (3, 4))
        first, second = (row[0] for row in listed[-2:])
        assert int(second) == int(first) + 1
        assert [row[7] for row in listed[-2:]] == ["30", "20"], "steps"
        assert ["steps", "30", "20", "0.67"] in both
        picture = _svg(str(notebook.wait(f"({PICTURE})()")))
        assert re.findall(r">(run \d+)<", picture) == [f"run {first}", f"run {second}"]
        curves = [points.split() for points in re.findall(r'<polyline points="([^"]*)"', picture)]
        assert len(curves) == 4, "loss and speed of each"
        assert min(map(len, curves)) >= 3, "curves are drawn, over the holes that the other run's moments leave"
        held = {row[0]: row[1:] for row in _rows(notebook.page.evaluate(OUTPUT.format(5)))}
        assert held["(gradients)"] == ["20", "MB", "0-1"]
        assert held["(parameters)"] == ["20", "MB", "0-1"]
        assert held["model"] == ["Linear", "20", "MB", "20", "MB", "0-1", "cell", "1:3"]
        assert notebook.page.evaluate(FIT) == [True] * 4, "tables and the picture have room in a small window"
        for name, cell in (("runs", 3), ("runs-two", 4), ("memory", 5)):
            notebook.page.locator(".jp-Cell").nth(cell).screenshot(path=SHOTS / f"{name}.png")
        notebook.page.set_viewport_size({"width": 700, "height": 1000})
        notebook.page.locator(".jp-Cell").nth(5).screenshot(path=SHOTS / "memory-narrow.png")
        notebook.page.locator(".jp-Cell").nth(4).screenshot(path=SHOTS / "runs-two-narrow.png")
        assert browser.errors == []
        assert browser.strangers == []


def _rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.strip()]


def _svg(source: str) -> str:
    head, _, body = source.partition(",")
    return base64.b64decode(body).decode() if head.endswith("base64") else unquote(body)
