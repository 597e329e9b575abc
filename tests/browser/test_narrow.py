"""The panel and pictures in a narrow container, as beside a file browser: all content is visible."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hvdtest.lab import ROOT
from playwright.sync_api import Page

from hvd_kernel.bench.report import Result, picture
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.picture import overlay, render

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
WIDGETS = ROOT / "widgets"
DRAW = """async ([module, style, snapshot, width]) => {
    document.body.innerHTML = `<style>${style}</style><div id="place" style="width: ${width}px"></div>`;
    const model = {get: () => snapshot, on() {}, off() {}, send() {}};
    const {default: make} = await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})));
    const widget = make();
    widget.initialize({model});
    widget.render({model, el: document.getElementById('place')});
    while (!document.querySelector('.hvd tbody tr')) await new Promise(requestAnimationFrame);
    const box = element => element.getBoundingClientRect();
    return [...document.querySelectorAll('.hvd tbody tr')].map(row => {
        const [cell, share] = [row.querySelector('td.left'), row.querySelector('.hvd-share')];
        const [outer, inner] = [box(cell), box(share)];
        return {height: Math.round(box(row).height), said: share.hidden ? '' : share.textContent, overflows: cell.scrollWidth > cell.clientWidth,
                inside: inner.left >= outer.left && inner.right <= outer.right && inner.bottom <= outer.bottom}; });
}"""


def snapshot() -> dict[str, Any]:
    board = Board(range(3), "cell 7", lambda: 0.0)
    for rank in range(3):
        state, name = ("compute", "") if rank == 2 else ("collective", "grad/layers.17.attention.weight")
        board.feed(MetricsSample(rank, 1.0, state, name, 4, 128, {"loss": 0.5}))
    made: dict[str, Any] = json.loads(json.dumps(board.snapshot()))
    made["slow"] = {"2": [1.4, 0.23]}
    return made


@pytest.mark.parametrize("width", [420, 560, 700, 1000])
def test_a13_text_about_a_slow_rank_is_not_clipped(page: Page, width: int) -> None:
    module = (WIDGETS / "static" / "dashboard.js").read_text()
    first, second, slow = page.evaluate(DRAW, [module, (WIDGETS / "dashboard.css").read_text(), snapshot(), width])
    assert slow["said"] == "others wait 23 %"
    assert slow["inside"]
    assert not slow["overflows"]
    assert [each["said"] for each in (first, second)] == ["", ""]
    assert first["height"] == second["height"] == 25, "a long name makes no row higher"


SIZES = """async svg => {
    document.body.innerHTML = `<div style="width: 500px"></div><div style="width: 1200px">${svg}</div>`;
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    document.querySelector('div').append(image);
    await image.decode();
    return [image, document.querySelector('svg')].map(each => Math.round(each.getBoundingClientRect().width));
}"""


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["the panel", "%hvd runs", "%hvd bench"])
def test_picture_is_no_wider_than_its_container(page: Page, what: str) -> None:
    """JupyterLab and nbconvert make an image of it, other front ends a part of the page."""
    svg = {
        "the panel": lambda: render(snapshot()),
        "%hvd runs": lambda: overlay({"run 1": {"samples/s": ([0.0, 1.0], [2.0, 3.0])}}, ""),
        "%hvd bench": lambda: picture([Result("hvd_kernel", 4096, 1.0, 1.0, 2e9, 1.0, right=True)], 2),
    }[what]()
    assert page.evaluate(SIZES, svg) == [500, 860]
