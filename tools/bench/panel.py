"""Cost of many ranks for a browser and its connection: our panel beside a plain anywidget with uPlot, in turn. JSON on stdout.

Samples are synthetic; messages, modules and the browser are the real ones. Both get five updates a second. The plain
widget does what its documentation shows: the curves are a trait, and a line for each rank is drawn again by ``setData``.
Bytes are those of Jupyter's messages, of the first minute; the share of one core is processor time of all of Chromium for
an update, five times a second: on a busy machine updates come late, and the time that tasks last says little.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.session import Session
from playwright.sync_api import Page, sync_playwright

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import SAMPLES, Board

WIDGETS = Path(__file__).resolve().parents[2] / "widgets"
CHROMIUM = os.environ.get("HVD_TEST_CHROMIUM", "/usr/bin/chromium")
RANKS, PER_S, BEFORE, UPDATES, ROUNDS = 64, 5, 60, 60, 3
MINUTE = 60 * PER_S
PLAIN = """
const chart = (el, n) => {
  const series = [{}, ...Array.from({length: n}, (_, i) => ({stroke: `hsl(${Math.round(360 * i / n)} 60% 50%)`, points: {show: false}}))];
  return new uPlot({width: 500, height: 150, legend: {show: false}, scales: {x: {time: false}}, series}, [[]], el);
};
export default {
  render({model, el}) {
    const plots = ["loss", "speed"].map(name => [name, chart(el, model.get("ranks"))]);
    const draw = () => { for (const [name, plot] of plots) plot.setData([model.get("t"), ...model.get(name)]); };
    model.on("change", draw);
    draw();
  },
};
"""
PLAY = """async ([module, first, updates, everyMs]) => {
  const made = (await import(URL.createObjectURL(new Blob([module], {type: 'text/javascript'})))).default;
  const widget = typeof made === 'function' ? made() : made;
  const listeners = {};
  let state = JSON.parse(first);
  const model = {get: name => state[name], on(name, act) { listeners[name] = act; }, off() {}, send() {}};
  widget.initialize?.({model});
  widget.render({model, el: document.querySelector('main')});
  await new Promise(resolve => setTimeout(resolve, 1000));
  window.played = false;
  window.play = () => {
    let next = 0;
    const timer = setInterval(() => {
      if (next === updates.length) { clearInterval(timer); window.played = true; return; }
      const content = JSON.parse(updates[next++]);
      if (listeners['msg:custom']) {
        if (content.snapshot) { state = content; listeners['change:snapshot'](); } else listeners['msg:custom'](content);
      } else { state = {...state, ...content}; listeners.change(); }
    }, everyMs);
  };
}"""


def rounds() -> Iterator[tuple[Board, dict[str, Any], bool]]:
    """Yield, for each update, the board, its increment, and whether a snapshot is due."""
    now = [0.0]
    board = Board(range(RANKS), "cell 1", lambda: now[0])
    for i in range(MINUTE):
        now[0] = i / PER_S
        for rank in range(RANKS):
            board.feed(sample(i, rank, now[0]))
            if i % 5 == rank % 5:
                board.log.feed(rank, "stdout", f"step {i * 4}\n")
        yield board, *board.increment()


def sample(i: int, rank: int, now: float) -> MetricsSample:
    """Return a sample of a rank of a training run whose numbers change."""
    waits = (i + rank) % 3 > 0
    return MetricsSample(
        rank, now + rank * 1e-4, "collective" if waits else "compute", "grad/conv1.weight" if waits else "",
        i * 4, i * 128 + rank % 7, {"loss": 2.3 * math.exp(-i / 30) + rank / 50 + math.sin(i * rank) / 99},
        round(i * 4e7 * (1 + math.sin(i / 7 + rank) / 90)), i * 8, round(i * 6e7 * (1 + math.sin(i / 5 + rank) / 90)),
        i * 30_000_000, i * 0.19, 400_000_000 + rank * 1_000_000 + i * 4096, ran_ns=i * 190_000_000 + 1,
    )  # fmt: skip


def ours() -> tuple[str, str, list[list[str]]]:
    """Return module, first state, and the contents of the updates of our panel."""
    first, updates = "", []
    for i, (board, increment, whole) in enumerate(rounds()):
        updates.append([json.dumps(increment)])
        updates[-1] += [json.dumps({"snapshot": board.snapshot()})] if whole else []
        if i + 1 == BEFORE:
            first = json.dumps({"snapshot": board.snapshot()})
    return (WIDGETS / "static" / "dashboard.js").read_text(), first, updates


def plain() -> tuple[str, str, list[list[str]]]:
    """Return the same for the plain widget, which gets all points of both curves in each update."""
    states = []
    for board, _, _ in rounds():
        curves = board.grid.curves
        turned = [list(zip(*curves[name], strict=True)) for name in ("log:loss", SAMPLES)]
        states.append([json.dumps({"t": board.grid.t, "loss": turned[0], "speed": turned[1]})])
    first = json.dumps({"ranks": RANKS} | json.loads(states[BEFORE - 1][0]))
    uplot = (WIDGETS / "static" / "dashboard.js").read_text().split("\n// widgets/js/", maxsplit=1)[0]
    return uplot + PLAIN, first, states


def sent(updates: list[list[str]], method: str) -> float:
    """Return kB per second of Jupyter's messages."""
    session = Session()
    size = 0
    for update in itertools.chain.from_iterable(updates):
        content = {"comm_id": "0" * 32, "data": {"method": method, "content": json.loads(update)}}
        size += sum(len(json.dumps(part, default=str)) for part in session.msg("comm_msg", content).values())
    return size / 1000 / (MINUTE / PER_S)


def cost(page: Page, browser: psutil.Process, case: tuple[str, str, list[list[str]]]) -> tuple[float, float]:
    """Return milliseconds for an update: of the page's main thread, and processor time of all of Chromium."""
    module, first, whole = case
    updates = [*itertools.chain.from_iterable(whole[BEFORE : BEFORE + UPDATES])]
    css = "\n".join((WIDGETS / name).read_text() for name in ("static/uPlot.min.css", "dashboard.css"))
    page.set_content(f"<!doctype html><meta charset=utf-8><style>{css}</style><body><main></main></body>")
    page.evaluate(PLAY, [module, first, updates, 1000 * UPDATES / PER_S / len(updates)])
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def now() -> tuple[float, float]:
        metrics = {item["name"]: item["value"] for item in devtools.send("Performance.getMetrics")["metrics"]}
        family = [browser, *browser.children(recursive=True)]
        return metrics["TaskDuration"], sum(sum(process.cpu_times()[:2]) for process in family)

    before = now()
    page.evaluate("window.play()")
    page.wait_for_function("window.played", polling=500, timeout=180_000)
    after = now()
    return 1000 * (after[0] - before[0]) / UPDATES, 1000 * (after[1] - before[1]) / UPDATES


def main() -> None:
    """Measure both in turn, in one browser."""
    cases = {"hvd_kernel": ours(), "anywidget + uPlot": plain()}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        here = psutil.Process().children(recursive=True)
        browser = next(
            process for process in here if "chrom" in process.name() and "chrom" not in process.parent().name()
        )
        for _ in range(ROUNDS):
            for name, case in cases.items():
                page = chromium.new_page(viewport={"width": 1100, "height": 1200})
                shares[name].append(cost(page, browser, case))
                page.close()
        chromium.close()
    figures = {
        name: {
            "kB_per_s": round(sent(cases[name][2], "custom" if name == "hvd_kernel" else "update"), 1),
            "main_thread_ms": round(statistics.median(sample[0] for sample in measured), 2),
            "cpu_ms": round(statistics.median(sample[1] for sample in measured), 2),
            "share_of_a_core": round(PER_S / 1000 * statistics.median(sample[1] for sample in measured), 4),
        }
        for name, measured in shares.items()
    }
    json.dump(
        {"ranks": RANKS, "updates_per_s": PER_S, "rounds": ROUNDS, "load": os.getloadavg()[0], **figures}, sys.stdout
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
