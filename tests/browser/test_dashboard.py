"""The dashboard in JupyterLab in Chromium: numbers update during the cell, a reload loses nothing, hostile text is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from hvdtest.lab import ROOT, Lab, Notebook
from nbconvert import HTMLExporter
from playwright.sync_api import Page

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.dashboard import Dashboard

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
SHOTS = ROOT / "build" / "widgets"
PANELS = "document.querySelectorAll('.hvd')"

TRAIN = """
import math, os, threading, time
from IPython.display import display
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets import Dashboard

def round_of_samples(i, ranks, board):
    for r in range(ranks):
        board.feed(MetricsSample(
            r, i * 0.1, "collective" if (i + r) % 3 else "compute", "grad/conv1.weight" if (i + r) % 3 else "",
            i * 4, i * 128, {"loss": 2.3 * math.exp(-i / 30) + r / 50}, i * 40_000_000, i, i * 30_000_000,
            i * 15_000_000 * (r != 1), i * 0.095, 400_000_000 + r))
        board.feed_text(r, "stdout", f"rank {r} round {i}\\n")

board = Dashboard(range(4), "cell 1")
display(board, board)
"""
LIVE = """
def feed():
    for i in range(60):
        while i in (20, 40) and not os.path.exists(f"seen-{i}"):
            time.sleep(0.05)
        round_of_samples(i, 4, board)
        time.sleep(0.1)
feeder = threading.Thread(target=feed)
feeder.start()
while feeder.is_alive():
    board.flush()
    time.sleep(0.05)
board.finish({0: "done", 1: "done", 2: "done", 3: "failed"})
"""
CANARY = "window.__ran = (window.__ran || 0) + 1"
PAYLOADS = [
    f"<script>{CANARY}</script>",
    f'<img src=x onerror="{CANARY}">',
    f'"><svg onload="{CANARY}">',
    f'<iframe srcdoc="<script>parent.{CANARY}</script>"></iframe>',
    f'<math><mi//xlink:href="data:x,<script>{CANARY}</script>">',
    f'<noscript><p title="</noscript><img src=x onerror={CANARY}>">',
    f"<form id=hvd><input name=parentNode></form><a id=store href='javascript:{CANARY}'>x</a>",
    f"</style><script>{CANARY}</script><style>*{{display:none}}",
    f"${{{CANARY}}} {{{{constructor.constructor('{CANARY}')()}}}}",
    f"\x1b]8;;javascript:{CANARY}\x07link\x1b]8;;\x07",
    "\u202e</div>\u2066</article>",
    "__proto__",
    "constructor",
]  # fmt: skip


def write(folder: Path, *cells: str) -> Path:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(book, folder / "board.ipynb")
    return folder / "board.ipynb"


def numbers(notebook: Notebook) -> list[dict[str, Any]]:
    """Return what each view shows: figures, cells of the table, last line of the output, drawn points."""
    script = """() => [...document.querySelectorAll('.hvd')].map(v => ({
        figures: Object.fromEntries([...v.querySelectorAll('.hvd-figure')].map(f => [...f.children].map(e => e.textContent))),
        rows: [...v.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim())),
        lines: [...v.querySelectorAll('.hvd-line')].map(l => l.textContent),
        charts: [...v.querySelectorAll('.hvd-plot')].map(p => p.getAttribute('aria-label')),
        status: v.querySelector('.hvd-status').textContent, clock: v.querySelector('.hvd-clock').textContent}))"""
    seen: list[dict[str, Any]] = notebook.page.evaluate(script)
    return seen


def test_numbers_move_in_every_view_and_survive_a_reload(lab: Lab, place: Path) -> None:
    name = write(place, TRAIN + LIVE)
    with lab.browser() as browser:
        notebook = browser.open(name)
        notebook.run_all()
        notebook.wait(f"{PANELS}.length === 2 && {PANELS}[0].querySelectorAll('tbody tr').length === 4")
        seen = []
        for at in (20, 40):  # where the cell waits until it was looked at
            notebook.wait(f"Number({PANELS}[0].querySelectorAll('dd')[1].textContent) === {4 * (at - 1)}")
            seen.append(numbers(notebook)[0])
            notebook.shoot(SHOTS / "live.png", ".hvd")
            (place / f"seen-{at}").touch()
        assert seen[0]["status"] == seen[1]["status"] == "running"
        assert float(seen[0]["figures"]["loss"]) > float(seen[1]["figures"]["loss"])
        assert (seen[1]["figures"]["exposed comm"], seen[1]["figures"]["overlapped comm"]) == ("0 %", "19 %")
        assert seen[1]["figures"]["samples/s"] == "5,120"
        notebook.wait(f"[...{PANELS}].every(v => v.dataset.kind === 'bad')")
        first, second = numbers(notebook)
        assert first == second
        assert first["status"] == "failed on rank 3"
        assert [row[1] for row in first["rows"]] == ["done", "done others wait 15 %", "done", "failed"]
        assert [row[2] for row in first["rows"]] == ["236"] * 4
        assert "slow 1.2x" in first["rows"][1][0]
        assert "slow" not in "".join(row[0] for row in (first["rows"][0], *first["rows"][2:]))
        assert first["lines"][-1] == "[3]rank 3 round 59"
        notebook.save()
        notebook.reload()
        notebook.wait(f"{PANELS}.length === 2 && [...{PANELS}].every(v => v.dataset.kind === 'bad')")
        assert numbers(notebook) == [first, second]
        notebook.page.click(".hvd-rank >> nth=2")
        notebook.wait(f"[...{PANELS}[0].querySelectorAll('.hvd-line')].every(l => l.textContent.startsWith('[2]'))")
        assert browser.errors == []
        assert browser.strangers == []


@pytest.mark.nightly
def test_100_flushes_of_8_ranks_are_small(lab: Lab, place: Path) -> None:
    quick = (
        TRAIN.replace("range(4)", "range(8)")
        .replace("display(board, board)", "display(board)")
        .replace('board.feed_text(r, "stdout", f"rank {r} round {i}\\n")', "pass")
    )
    go = """
for i in range(100):
    round_of_samples(i, 8, board)
    board.flush()
    time.sleep(0.11)
board.finish({})
"""
    name = write(place, quick, go)
    with lab.browser() as browser:
        notebook = browser.open(name)
        notebook.run_all()
        notebook.wait(f"{PANELS}.length === 1")
        browser.page.evaluate("new Promise(requestAnimationFrame)")
        before = browser.received
        notebook.wait(f"{PANELS}[0].dataset.kind === 'good'")
        received = browser.received - before
    assert received < 500_000, f"{received} bytes, headers included"


@pytest.mark.nightly
def test_hostile_text_is_text(lab: Lab, place: Path) -> None:
    feed = f"""
payloads = {PAYLOADS!r}
for i in range(8):
    for r in range(4):
        board.feed(MetricsSample(r, i * 0.3, payloads[r], payloads[-1 - r], i, i, {{payloads[(r + k) % 4]: i for k in range(4)}}))
        for p in payloads:
            board.feed_text(r, p if r == 2 else "stderr", p + "\\n" + p)
    time.sleep(0.11)
    board.flush()
board.finish({{r: payloads[r + 4] for r in range(4)}})
"""
    name = write(place, TRAIN.replace('"cell 1"', repr(PAYLOADS[1])) + feed)
    with lab.browser() as browser:
        dialogs: list[str] = []
        browser.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        notebook = browser.open(name)
        notebook.run_all()
        notebook.wait(f"{PANELS}.length === 2 && {PANELS}[1].querySelector('.hvd-clock').textContent !== ''")
        notebook.wait(f"{PANELS}[0].dataset.kind === 'good'")
        assert notebook.page.evaluate("window.__ran") is None
        assert dialogs == []
        strange = "img, script, svg, iframe, style, form, a, input, math, noscript"
        assert notebook.page.evaluate(f"document.querySelectorAll('.hvd :is({strange})').length") == 0
        assert notebook.text(".hvd h3") == PAYLOADS[1]
        shown = numbers(notebook)[0]
        assert any(PAYLOADS[0] in line for line in shown["lines"])
        assert [row[1] for row in shown["rows"]] == [" ".join(PAYLOADS[r + 4].split()) for r in range(4)]
        assert set(shown["figures"]) >= {p for p in PAYLOADS[:4] if len(p) <= 48}
        assert browser.errors == []
        assert browser.strangers == []


def test_picture_runs_no_script_in_a_page_or_nbconvert(page: Page, tmp_path: Path) -> None:
    board = Dashboard(range(2), PAYLOADS[0])
    for i in range(5):
        for rank, payload in enumerate(PAYLOADS[1:3]):
            board.feed(MetricsSample(rank, i * 0.3, payload, payload, i, i * 9, {payload: float(i)}))
    board.finish({0: PAYLOADS[0], 1: PAYLOADS[1]})
    data, metadata = board.static_bundle()
    output = nbformat.v4.new_output("display_data", data, metadata=metadata)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
    html, _ = HTMLExporter().from_notebook_node(book)
    (tmp_path / "nbconvert.html").write_text(html)
    (tmp_path / "alone.svg").write_text(data["image/svg+xml"])
    (tmp_path / "inline.html").write_text(f"<!doctype html><meta charset=utf-8><body>{data['image/svg+xml']}")
    assert "data:image/svg+xml" in html or "<svg" in html
    page.route("http*://**", lambda route: route.abort())
    for name in ("alone.svg", "inline.html", "nbconvert.html"):
        page.goto(f"file://{tmp_path / name}")
        assert page.evaluate("window.__ran") is None
        assert page.evaluate("document.querySelectorAll('img[src=x], iframe, form').length") == 0
