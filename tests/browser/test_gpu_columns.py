"""The dashboard's columns of GPU figures, in Chromium: shown if a device has the figure, absent without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.lab import ROOT
from playwright.sync_api import Page

from hvd_kernel.formatting import units
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.picture import render

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
SHOTS = ROOT / "build" / "widgets"
SHOW = """async ([module, snapshot]) => {
    const made = (await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})))).default();
    const model = {get: () => snapshot, on() {}, off() {}, send() {}};
    made.initialize({model});
    made.render({el: document.body});
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    const cells = row => [...row.cells].map(cell => cell.innerText.trim());
    return [cells(document.querySelector('thead tr')), ...[...document.querySelectorAll('tbody tr')].map(cells)];
}"""
HOST = ["rank", "state", "step", "samples/s", "comm %", "bus GB/s", "CPU", "memory"]


def snapshot(*gpus: dict[str, float]) -> dict[str, Any]:
    """Return the snapshot of a board of this many ranks."""
    now = [0.0]
    board = Board(range(len(gpus)), "train", lambda: now[0])
    for i in range(6):
        now[0] = i * 0.2
        for rank, gpu in enumerate(gpus):
            board.feed(
                MetricsSample(
                    rank, now[0], "compute", step=i, samples=i * 64, bytes=i * 10**8, ops=i, comm_ns=i * 10**7,
                    cpu_s=0.1 * i, rss=3 * 10**9, gpu=gpu,
                )
            )  # fmt: skip
    return board.snapshot()


def table(page: Page, shot: dict[str, Any], name: str) -> list[list[str]]:
    module = (ROOT / "widgets" / "static" / "dashboard.js").read_text()
    css = "\n".join((ROOT / "widgets" / n).read_text() for n in ("static/uPlot.min.css", "dashboard.css"))
    page.set_content(f"<!doctype html><style>{css}</style><body>")
    shown: list[list[str]] = page.evaluate(SHOW, [module, shot])
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / name)
    page.set_content(render(shot))
    page.screenshot(path=SHOTS / f"picture-{name}")
    return shown


def test_figures_of_a_device_are_shown_missing_ones_as_dash(page: Page) -> None:
    whole = {"util": 71.4, "memory": 2e9, "power": 412.5, "temperature": 68.0, "pcie_tx": 1.2e9, "pcie_rx": 3.4e9}
    linked = whole | {"nvlink_tx": 100e9, "nvlink_rx": 101e9, "power": 95.0, "pcie_tx": 0.0, "pcie_rx": 0.0}
    head, *rows = table(page, snapshot(linked, whole, {"util": 3.0}, {}), "gpus.png")
    assert head == [*HOST, "GPU", "GPU memory", "power", "NVLink", "PCIe"]
    assert [row[len(HOST) :] for row in rows] == [
        ["71 %", "2 GB", "95 W, 68 °C", "201 GB/s", "0"],
        ["71 %", "2 GB", "413 W, 68 °C", units.NONE, "4.6 GB/s"],
        ["3 %", *[units.NONE] * 4],
        [units.NONE] * 5,
    ]


def test_gpu_columns_are_absent_without_a_gpu(page: Page) -> None:
    head, *rows = table(page, snapshot({}, {}), "no-gpus.png")
    assert head == HOST
    assert [len(row) for row in rows] == [len(HOST)] * 2


def test_picture_shows_load_and_power() -> None:
    said = render(snapshot({"util": 71.4, "power": 412.4}, {}))
    assert all(f">{word}<" in said for word in ("GPU", "power", "71 %", "412 W"))
    assert ">power<" not in render(snapshot({"util": 71.4}, {}))
