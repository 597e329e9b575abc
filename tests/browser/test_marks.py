"""Marks on the dashboard's time axis, in Chromium: a line over each chart at the moment, its label, the line of text."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.lab import ROOT
from playwright.sync_api import Page

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.picture import MARKS, render

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.nightly]
SHOTS = ROOT / "build" / "widgets"
SHOW = """async ([module, snapshot, colours]) => {
    const made = (await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})))).default();
    const model = {get: () => snapshot, on() {}, off() {}, send() {}};
    made.initialize({model});
    made.render({el: document.body});
    for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
    const place = (canvas, colour) => {
        const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
        const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const columns = Array(width).fill(0);
        for (let i = 0; i < data.length; i += 4)
            if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) columns[(i / 4) % width]++;
        const most = Math.max(...columns);
        return [columns.indexOf(most) / width, most / height];
    };
    const canvases = [...document.querySelectorAll('.hvd-plot canvas')];
    return [document.querySelector('.hvd-marks').innerText, canvases.map(c => colours.map(colour => place(c, colour)))];
}"""


def snapshot() -> dict[str, Any]:
    """Three ranks in ten seconds; one dies after four of them."""
    now = [0.0]
    board = Board(range(3), "train", lambda: now[0])
    for i in range(51):
        now[0] = i * 0.2
        for rank in range(3):
            if rank == 2 and 20 <= i < 26:
                continue
            board.feed(
                MetricsSample(
                    rank, now[0], "compute", step=i, samples=i * 64, logged={"loss": 2.0 / (i + 1 + 0.2 * rank)},
                    bytes=i * 10**8, ops=i, comm_ns=i * 10**7, cpu_s=0.1 * i, rss=3 * 10**9,
                )
            )  # fmt: skip
        if i == 20:
            board.mark("died", "rank 2 died")
        if i == 25:
            board.mark("joined", "rank 2 joined, generation 2")
            board.mark("lost", "3 steps lost")
    return board.snapshot()


def test_mark_draws_a_line_in_each_chart_at_its_time(page: Page) -> None:
    module = (ROOT / "widgets" / "static" / "dashboard.js").read_text()
    css = "\n".join((ROOT / "widgets" / n).read_text() for n in ("static/uPlot.min.css", "dashboard.css"))
    page.set_viewport_size({"width": 1000, "height": 480})
    page.set_content(f"<!doctype html><style>{css}</style><body>")
    shot = snapshot()
    said, found = page.evaluate(SHOW, [module, shot, [MARKS["died"], MARKS["lost"]]])
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "marks.png")
    assert said == "4.0 s rank 2 died · 5.0 s rank 2 joined, generation 2 · 5.0 s 3 steps lost"
    assert len(found) == 2, "a chart of the loss and one of the rates"
    for (died_at, died_height), (lost_at, lost_height) in found:
        assert died_height > 0.6
        assert lost_height > 0.6
        assert 0.4 < died_at < 0.5
        assert 0.02 < lost_at - died_at < 0.12
    page.set_content(render(shot))
    page.screenshot(path=SHOTS / "picture-marks.png")
