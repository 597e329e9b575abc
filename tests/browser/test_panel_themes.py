"""The panel in light, dark, high-contrast and system colours: axe-core's findings, keyboard access, 64 ranks as a heat map."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hvdtest.lab import ROOT
from playwright.sync_api import Page

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.protocol.operations import Operation, Recent
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.swimlanes.window import Window

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300), pytest.mark.nightly]
SHOTS = ROOT / "build" / "widgets"
AXE = ROOT / "build" / "js" / "node_modules" / "axe-core" / "axe.min.js"
SHOW = """async ([module, snapshot, timeline]) => {
    const made = (await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})))).default();
    const listeners = {};
    const model = {get: () => snapshot, on(name, act) { listeners[name] = act; }, off() {}, send() {}};
    made.initialize({model});
    made.render({el: document.querySelector('main')});
    if (timeline) listeners['msg:custom']({timeline});
    for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
    if (timeline) document.querySelector('.hvd-lanes').open = true;
    for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
}"""
PAINTED = """colours => {
    const canvas = document.querySelector('.hvd-lanes-canvas');
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) found.add((data[i] << 16) + (data[i + 1] << 8) + data[i + 2]);
    return colours.map(colour => found.has(colour));
}"""
KINDS = [0x8ECAE6, 0xE69F00, 0xD55E00, 0x0072B2]  # computing, standing still, waiting for a rank, transfer
LIGHT = "--jp-layout-color0: #fff; --jp-ui-font-color0: #000000de; --jp-ui-font-color2: #00000099; background: #fff"
DARK = "--jp-layout-color0: #111; --jp-ui-font-color0: #ffffffde; --jp-ui-font-color2: #ffffffa6; background: #111"
THEMES: dict[str, tuple[str, dict[str, Any]]] = {  # JupyterLab's variables, and what the system says
    "light": (LIGHT, {}),
    "dark": (DARK, {}),
    "more contrast": (DARK, {"contrast": "more"}),
    "no theme": ("", {"color_scheme": "dark"}),
    "forced colours": (LIGHT, {"forced_colors": "active"}),
}


def snapshot(ranks: int) -> dict[str, Any]:
    """Sixteen seconds of training; rank 2 is slow, its core is shared; rank 1 has died at the end."""
    now = [0.0]
    board = Board(range(ranks), "cell 7", lambda: now[0])
    for i in range(80):
        now[0] = i * 0.2
        for rank in range(ranks):
            waits = (i + rank) % 3 > 0
            board.feed(
                MetricsSample(
                    rank, now[0], "collective" if waits else "compute", "allreduce.grad" if waits else "", i * 4, i * 128,
                    {"loss": 2.3 * math.exp(-i / 30) + rank / 50}, i * 40_000_000, i * 8, i * 60_000_000,
                    i * (4_000_000 if rank == 2 else 34_000_000), i * 0.19, 400_000_000,
                    ran_ns=i * 130_000_000 + 1, queued_ns=i * 50_000_000 * (rank == 2),
                )
            )  # fmt: skip
            if i % 10 == 0:
                board.log.feed(rank, "stderr" if rank == 1 else "stdout", f"epoch {i // 10}\n")
    board.mark("died", "rank 1 died")
    return board.snapshot()


def timeline() -> dict[str, Any]:
    window = Window("here", 0)
    answers = {}
    for rank in range(4):
        at = [1_000_000 + 200_000 * k + (60_000 if rank == 2 else 20_000) for k in range(70)]
        done = [
            Operation(a, a + 5000, a + 60_000, a + 61_000, a + 90_000, "ALLREDUCE", "grad", "SHM", 3, 4_000_000)
            for a in at
        ]
        answers[rank] = Recent("here", 16_000_000, (1, 1), tuple(done), tuple((each.ready, each.end) for each in done))
    window.update(answers, 16_000_000)
    return window.whole()


def show(page: Page, ranks: int, style: str = LIGHT, **media: Any) -> None:
    module = (ROOT / "widgets" / "static" / "dashboard.js").read_text()
    css = "\n".join((ROOT / "widgets" / n).read_text() for n in ("static/uPlot.min.css", "dashboard.css"))
    page.emulate_media(**media)
    page.set_viewport_size({"width": 1000, "height": 1300})
    page.set_content(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>panel</title><style>{css}</style>"
        f'<body style="{style}"><main></main></body></html>'
    )
    page.evaluate(SHOW, [module, json.loads(json.dumps(snapshot(ranks))), timeline() if ranks < 9 else None])


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: bash .ci/js install")
@pytest.mark.parametrize("name", THEMES)
def test_axe_finds_no_violation(page: Page, name: str) -> None:
    style, media = THEMES[name]
    show(page, 4, style, **media)
    page.locator(".hvd").screenshot(path=SHOTS / f"theme-{name.replace(' ', '-')}.png")
    assert page.evaluate(PAINTED, KINDS) == [True] * len(KINDS), "lanes have the colours of their legend"
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document.querySelector('main'), {resultTypes: ['violations']})")
    assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]] == []


def test_every_control_has_a_name_and_is_reached_by_keyboard(page: Page) -> None:
    show(page, 4)
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate("""() => {
            const at = document.activeElement;
            return at.closest('.hvd') ? at.getAttribute('aria-label') ?? at.textContent : null;
        }""")
        if found is None:
            break
        names.append(found)
    assert all(names)
    assert {f"rank {rank}: show alone" for rank in range(4)} <= set(names)
    assert {"loss", "samples/s", "bus GB/s", "timeline", "Ranks", "Output of the ranks"} <= set(names)
    assert any(name.startswith("Timeline. Arrow keys") for name in names)
    assert {name.split(":")[0] for name in names} >= {"follow", "+", "\N{MINUS SIGN}", "all", "JSON", "SVG", "PNG"}


@pytest.mark.parametrize(("ranks", "heat"), [(8, False), (9, True)])
def test_nine_or_more_ranks_are_a_heat_map(page: Page, ranks: int, heat: bool) -> None:
    show(page, ranks)
    assert page.evaluate("[...document.querySelectorAll('.hvd-heat')].map(each => !each.hidden)") == [heat] * 2
    assert (page.evaluate("document.querySelectorAll('.uplot').length") == 0) is heat


def test_64_ranks_are_a_heat_map_and_a_click_shows_one(page: Page) -> None:
    show(page, 64)
    assert page.evaluate("[...document.querySelectorAll('.hvd-heat')].map(each => each.hidden)") == [False, False]
    assert page.evaluate("document.querySelectorAll('.uplot').length") == 0, "no lines are drawn"
    page.locator(".hvd").screenshot(path=SHOTS / "heat.png")
    box = page.locator(".hvd-heat").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 4 + (148 - 26) * 40.5 / 64)
    page.wait_for_function("document.querySelectorAll('.uplot').length === 2")
    assert page.evaluate("document.querySelector('.hvd-rank[aria-pressed=true]').textContent") == "40"
    page.mouse.move(0, 0)
    left = "document.querySelector('.hvd-heat').dispatchEvent(new PointerEvent('pointerleave'))"
    page.evaluate(left)  # as when the pointer goes before the lines are there
    page.wait_for_function("document.querySelector('.hvd-readout').textContent === 'rank 40, and the mean of 64'")
    page.locator(".hvd").screenshot(path=SHOTS / "heat-one.png")
    page.click(".hvd-rank[aria-pressed=true]")
    page.wait_for_function("[...document.querySelectorAll('.hvd-heat')].every(each => !each.hidden)")
    page.focus(".hvd-heat")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.text_content(".hvd-readout >> nth=0").endswith("rank 3   0.2250")  # type: ignore[union-attr]
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.hvd-rank[aria-pressed=true]')?.textContent === '3'")
