"""The cost of an update of the panel in the page, and what it leaves undisturbed: 64 ranks in Chromium."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hvdtest.lab import ROOT
from playwright.sync_api import Page

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.nightly]
RANKS = 64
SHOW = """async ([module, snapshot]) => {
    const made = (await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})))).default();
    const model = {get: () => snapshot, on(name, act) { if (name === 'msg:custom') window.take = act; }, off() {}, send() {}};
    made.initialize({model});
    made.render({el: document.body});
    window.drawn = async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); };
    await window.drawn();
}"""
GIVE = "async update => { window.take(update); await window.drawn(); }"


class Run:
    """A board of many ranks, shown; each update is the next 0.2 s."""

    def __init__(self, page: Page) -> None:
        self._page, self._now, self._rounds = page, [0.0], 0
        self._board = Board(range(RANKS), "cell 1", lambda: self._now[0])
        for _ in range(20):
            self._next()
        module = (ROOT / "widgets" / "static" / "dashboard.js").read_text()
        css = "\n".join((ROOT / "widgets" / n).read_text() for n in ("static/uPlot.min.css", "dashboard.css"))
        page.set_viewport_size({"width": 1000, "height": 1000})
        page.set_content(f"<!doctype html><style>{css}</style><body>")
        page.evaluate(SHOW, [module, json.loads(json.dumps(self._board.snapshot()))])

    def _next(self) -> dict[str, Any]:
        self._rounds += 1
        self._now[0] = self._rounds * 0.2
        for rank in range(RANKS):
            done = self._rounds * (4 + rank % 3)
            self._board.feed(
                MetricsSample(
                    rank, self._now[0], "compute", "", done, done * 32, {"loss": 1.0 / done}, done * 10**7, done,
                    done * 10**7,
                )
            )  # fmt: skip
            if rank % 5 == self._rounds % 5:
                self._board.log.feed(rank, "stdout", f"step {done}\n")
        return self._board.increment()[0]

    def update(self) -> None:
        self._page.evaluate(GIVE, self._next())


def test_update_causes_one_layout_of_the_page(page: Page) -> None:
    """Reading a width after a change, or scrolling, forces a layout of the page."""
    run = Run(page)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def layouts() -> int:
        found = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
        return int(found["LayoutCount"])

    before = layouts()
    for _ in range(10):
        run.update()
    assert layouts() - before == 10


def test_scroll_position_is_kept_except_at_the_end(page: Page) -> None:
    run = Run(page)
    places = """() => {
        const [box, lines] = [document.querySelector('.hvd-lines'), [...document.querySelectorAll('.hvd-line')]];
        const {top, bottom} = box.getBoundingClientRect();
        return lines.filter(line => {
            const at = line.getBoundingClientRect();
            return at.top >= top - 1 && at.bottom <= bottom + 1;
        }).map(line => line.innerText);
    }"""
    newest = "() => [...document.querySelectorAll('.hvd-line')].at(-1).innerText"
    seen = page.evaluate(places)
    run.update()
    assert page.evaluate(places) != seen
    assert page.evaluate(places)[-1] == page.evaluate(newest), "the end, without a scroll"
    page.evaluate("async () => { document.querySelector('.hvd-lines').scrollTop = -360; await window.drawn(); }")
    seen = page.evaluate(places)
    assert len(seen) >= 6
    for _ in range(3):
        run.update()
        assert page.evaluate(places) == seen
    page.evaluate("async () => { document.querySelector('.hvd-lines').scrollTop = 0; await window.drawn(); }")
    run.update()
    assert page.evaluate(places)[-1] == page.evaluate(newest)
