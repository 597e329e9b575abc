"""Draw how agreement and reduction scale to thousands of ranks: runs the simulator, writes its table and two plots.

python tools/bench/scaling.py build/native-plain/simulator docs/images   (about a minute for 4,096 ranks)
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

SIZES = (2, 8, 64, 512, 4096)
Row = dict[str, str]


def simulate(binary: str) -> list[Row]:
    """Return one row per number of ranks, fanout, algorithm and order in which the gradients arrive."""
    printed = subprocess.run([binary, *map(str, SIZES)], check=True, capture_output=True, text=True).stdout
    return list(csv.DictReader(io.StringIO(printed)))


def draw(rows: list[Row], column: str, gradients: str, label: str, path: Path) -> None:
    """Draw a line per fanout over the number of ranks, and the limit if the column is the time of a step."""
    figure, axes = plt.subplots(figsize=(5.2, 3.4))
    for fanout in ("star", "16", "64"):
        chosen = [
            r for r in rows if (r["fanout"], r["algorithm"], r["gradients"]) == (fanout, "hierarchical", gradients)
        ]
        name = fanout if fanout == "star" else f"tree, fanout {fanout}"
        axes.plot([int(r["ranks"]) for r in chosen], [float(r[column]) for r in chosen], marker="o", label=name)
    if column == "step_ms":
        axes.plot(
            [int(r["ranks"]) for r in chosen], [float(r["limit_ms"]) for r in chosen], "k:", label="alpha-beta bound"
        )
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel=label)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Run, print the table, draw."""
    binary, folder = sys.argv[1], Path(sys.argv[2])
    mpl.rcParams["svg.hashsalt"] = "hvd"
    rows = simulate(binary)
    sys.stdout.write("| " + " | ".join(rows[0]) + " |\n")
    for row in rows:
        sys.stdout.write("| " + " | ".join(row.values()) + " |\n")
    draw(rows, "step_ms", "backward", "one step, ms (virtual)", folder / "scaling_step.svg")
    draw(rows, "messages_of_busiest", "backward", "messages of the busiest rank", folder / "scaling_messages.svg")


if __name__ == "__main__":
    main()
