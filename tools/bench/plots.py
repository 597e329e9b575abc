"""Draw the plots of the documentation from docs/benchmarks/*.json: python -P tools/bench/plots.py [FOLDER]

Without FOLDER the SVG files in docs/images are replaced. The same data give the same bytes with the same matplotlib, so a plot
that does not belong to its data shows up as a difference (tests/unit/house/test_plots.py). Needs matplotlib and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

DOCS = Path(__file__).resolve().parents[2] / "docs"
GREY = "#808080"
"""Legible on white and on a dark page."""
OURS = "hvd_kernel"
LIBRARIES = {
    OURS: ("#d1495b", "o"),
    "Intel MPI": ("#3a86c8", "s"),
    "MPICH 5": ("#2a9d74", "^"),
    "Open MPI 5": ("#b8860b", "D"),
    "DeepSpeed": ("#8d6cc4", "v"),
    "torch Gloo": (GREY, "X"),
}
SIZES = ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB")
HIGHEST_RATIO = 4.3
"""Ratios above are not drawn; the caption names them."""
STYLE = {
    "svg.hashsalt": "hvd_kernel",
    "font.size": 10,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Data = dict[str, Any]


def panels(titles: list[str], *, height: float, same_y: bool) -> tuple[Figure, list[Axes]]:
    """Return a figure of two panels with titles and without a background."""
    figure, row = plt.subplots(1, 2, figsize=(8.2, height), sharey=same_y, layout="constrained")
    for panel, title in zip(row, titles, strict=True):
        panel.set_title(title, color=GREY)
    return figure, list(row)


def mark_ratios(panel: Axes, ratios: tuple[int, ...]) -> None:
    panel.set_yticks(ratios, [f"{ratio}\N{MULTIPLICATION SIGN}" for ratio in ratios])
    panel.minorticks_off()
    panel.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)


def add_legend(figure: Figure, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    options = {"ncols": len(labels), "frameon": False, "handlelength": 1.4, "columnspacing": 1.2}
    figure.legend(handles, labels, loc="outside lower center", **options)


def allreduce(data: Data) -> Figure:
    """Draw the time of each library divided by that of hvd_kernel, by message size."""
    figure, row = panels([f"{ranks} ranks" for ranks in data["ranks"]], height=3.5, same_y=True)
    for panel, cases in zip(row, data["ranks"].values(), strict=True):
        for library, (color, marker) in LIBRARIES.items():
            ratios = [cases[f"float32 {size}"][library].get("ratio", 1.0) for size in SIZES]
            shown = [ratio if ratio <= HIGHEST_RATIO else float("nan") for ratio in ratios]
            width = 3.0 if library == OURS else 1.5
            panel.plot(SIZES, shown, color=color, marker=marker, lw=width, ms=5, label=library)
        panel.set_ylim(0.6, HIGHEST_RATIO + 0.1)
        mark_ratios(panel, (1, 2, 3, 4))
        panel.tick_params(axis="x", rotation=30)
    row[0].set_ylabel("time ÷ hvd_kernel's time")
    add_legend(figure, row[0])
    return figure


def gradients(data: Data) -> Figure:
    """Draw the time to reduce ResNet-50's 161 gradients, one by one and grouped."""
    figure, row = panels([f"{ranks} ranks" for ranks in data["ranks"]], height=3.2, same_y=True)
    colors = [color for color, _ in LIBRARIES.values()]
    shades = {"one by one": (-0.2, 1.0), "grouped": (0.2, 0.45)}
    for panel, cases in zip(row, data["ranks"].values(), strict=True):
        for case, (offset, alpha) in shades.items():
            times = [1e3 * cases[f"ResNet-50 gradients, {case}"][library]["seconds"] for library in LIBRARIES]
            places = [place + offset for place in range(len(LIBRARIES))]
            bars = panel.barh(places, times, 0.36, color=colors, alpha=alpha)
            panel.bar_label(bars, fmt="%.0f ms", padding=3, fontsize=8, color=GREY)
        panel.set_yticks(range(len(LIBRARIES)), list(LIBRARIES))
        panel.margins(x=0.14)
        panel.xaxis.set_visible(False)
        panel.spines["bottom"].set_visible(False)
    row[0].invert_yaxis()
    keys = [Patch(color=GREY, alpha=alpha) for _, alpha in shades.values()]
    figure.legend(keys, list(shades), loc="outside lower center", ncols=2, frameon=False)
    return figure


def hosts(data: Data) -> Figure:
    """Draw the time of Gloo and Open MPI divided by that of hvd_kernel, between hosts."""
    figure, row = panels([f"{number} hosts" for number in data["hosts"]], height=3.4, same_y=True)
    lines = {OURS: LIBRARIES[OURS], "Gloo": LIBRARIES["torch Gloo"], "Open MPI": LIBRARIES["Open MPI 5"]}
    for panel, cases in zip(row, data["hosts"].values(), strict=True):
        for library, (color, marker) in lines.items():
            ratios = [case[library].get("ratio", 1.0) for case in cases.values()]
            width = 3.0 if library == OURS else 1.5
            panel.plot(list(cases), ratios, color=color, marker=marker, lw=width, ms=5, label=library)
        panel.set_yscale("log", base=2)
        mark_ratios(panel, (1, 2, 4, 8))
        panel.tick_params(axis="x", rotation=30)
    row[0].set_ylabel("time ÷ hvd_kernel's time")
    add_legend(figure, row[0])
    return figure


def scaling(data: Data) -> Figure:
    """Draw the time of a step and the messages of the busiest rank, by the number of ranks."""
    figure, row = panels(["one step, ms", "messages of the busiest rank"], height=3.2, same_y=False)
    lines = {"star": ("#b8860b", "D"), "tree, fanout 16": ("#3a86c8", "s"), "tree, fanout 64": ("#d1495b", "o")}
    for panel, column in zip(row, ("step_ms", "messages_of_busiest_rank"), strict=True):
        for kind, (color, marker) in lines.items():
            points = [point for point in data["ranks"] if point["negotiation"] == kind]
            numbers = [str(point["ranks"]) for point in points]
            panel.plot(numbers, [point[column] for point in points], color=color, marker=marker, ms=5, label=kind)
        panel.set_yscale("log")
        panel.set_xlabel("ranks")
        panel.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    row[0].set_yticks([100, 200, 400, 800], ["100", "200", "400", "800"])
    row[0].minorticks_off()
    add_legend(figure, row[0])
    return figure


def gpu(data: Data) -> Figure:
    """Draw the time of a training step on a shared GPU divided by that without reduction."""
    models = list(dict.fromkeys(step["model"] for step in data["steps"]))
    figure, row = panels(models, height=3.0, same_y=True)
    lines = {"default": ("hvd_kernel", LIBRARIES[OURS][0], -0.2), "DDP, Gloo": ("DDP over Gloo", GREY, 0.2)}
    for panel, model in zip(row, models, strict=True):
        steps = [step for step in data["steps"] if step["model"] == model]
        for column, (label, color, offset) in lines.items():
            ratios = [step[column] / step["no reduction"] for step in steps]
            bars = panel.barh([place + offset for place in range(len(steps))], ratios, 0.36, color=color, label=label)
            panel.bar_label(bars, fmt="%.2f", padding=3, fontsize=8, color=GREY)
        names = [f"{step['ranks']} ranks{', MPS' if step['mps'] else ''}" for step in steps]
        panel.set_yticks(range(len(steps)), names)
        panel.axvline(1, color=GREY, lw=0.8)
        panel.margins(x=0.12)
        panel.xaxis.set_visible(False)
        panel.spines["bottom"].set_visible(False)
    row[0].invert_yaxis()
    add_legend(figure, row[0])
    return figure


def recovery(data: Data) -> Figure:
    """Draw median and worst time of each kind of recovery, and the limit."""
    figure, panel = plt.subplots(figsize=(8.2, 3.4), layout="constrained")
    figures = data["figures"]
    places = range(len(figures))
    medians = [time["p50"] for time in figures.values()]
    worst = [time["worst"] for time in figures.values()]
    panel.hlines(places, medians, worst, color=LIBRARIES[OURS][0], lw=3)
    panel.plot(medians, places, "o", color=LIBRARIES[OURS][0], label="median")
    panel.plot(worst, places, "|", color=LIBRARIES[OURS][0], ms=12, mew=2, label="worst")
    limits = [(place, time.get("limit_worst", time.get("limit_p99"))) for place, time in enumerate(figures.values())]
    shown = [(place, limit) for place, limit in limits if limit is not None]
    panel.plot([limit for _, limit in shown], [place for place, _ in shown], "D", color=GREY, ms=5, label="limit")
    panel.set_yticks(places, list(figures))
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xticks([0.01, 0.1, 1, 10], ["10 ms", "100 ms", "1 s", "10 s"])
    panel.minorticks_off()
    panel.grid(axis="x", color=GREY, alpha=0.25, lw=0.6)
    add_legend(figure, panel)
    return figure


PLOTS = {
    "allreduce": allreduce,
    "gradients": gradients,
    "hosts": hosts,
    "scaling": scaling,
    "gpu": gpu,
    "recovery": recovery,
}
SOURCES = {"gradients": "allreduce"}
"""Plot -> the file of its data, where it has another name."""


def draw_all(folder: Path) -> None:
    """Write one SVG file per plot to a folder."""
    with mpl.rc_context(STYLE):
        for name, draw in PLOTS.items():
            data = json.loads((DOCS / "benchmarks" / f"{SOURCES.get(name, name)}.json").read_text())
            figure = draw(data)
            figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None})
            plt.close(figure)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images")
