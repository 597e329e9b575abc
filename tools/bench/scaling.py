"""Simulate how negotiation and reduction scale to thousands of ranks, and record the result for docs/performance.md.

python tools/bench/scaling.py build/native-plain/simulator   (about a minute for 4,096 ranks)

Prints the simulator's table and replaces the rows of docs/benchmarks/scaling.json, which tools/bench/plots.py draws.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SIZES = (2, 8, 64, 512, 4096)
SHOWN = (64, 512, 4096)
"""Numbers of ranks that the page shows."""
DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "scaling.json"
Row = dict[str, str]


def simulate(binary: str) -> list[Row]:
    """Return one row per number of ranks, fanout, algorithm and order in which the gradients arrive."""
    printed = subprocess.run([binary, *map(str, SIZES)], check=True, capture_output=True, text=True).stdout
    return list(csv.DictReader(io.StringIO(printed)))


def figures(rows: list[Row]) -> list[dict[str, Any]]:
    """Return what the page shows of the simulator's rows: a step with a backward pass, and a negotiation at once."""
    hierarchical = [row for row in rows if row["algorithm"] == "hierarchical" and int(row["ranks"]) in SHOWN]
    at_once = {
        (row["ranks"], row["fanout"]): row["negotiation_ms"] for row in hierarchical if row["gradients"] != "backward"
    }
    return [
        {
            "ranks": int(row["ranks"]),
            "negotiation": row["fanout"] if row["fanout"] == "star" else f"tree, fanout {row['fanout']}",
            "messages_of_busiest_rank": int(row["messages_of_busiest"]),
            "step_ms": round(float(row["step_ms"]), 1),
            "negotiation_ms": round(float(at_once[row["ranks"], row["fanout"]]), 2),
        }
        for row in hierarchical
        if row["gradients"] == "backward"
    ]


def main() -> None:
    """Simulate, print the table, and write the figures into the data of the page."""
    rows = simulate(sys.argv[1])
    print("| " + " | ".join(rows[0]) + " |")
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")
    data = json.loads(DATA.read_text())
    DATA.write_text(json.dumps(data | {"ranks": figures(rows)}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
