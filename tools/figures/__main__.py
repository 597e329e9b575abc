"""The figures of docs/reliability.md: python tools/figures [R4 R10=20 ...]; a number after = is how often.

Numbers as in the fault matrix: R1 a death known to all, R2 stopped and hung ranks named, R3 false deaths, R4 usable again
after a death, R5 survivors' variables, R8 throughput under faults, R10 interrupts, R11 orphans of a killed kernel,
R12 files left, R20 ten minutes of cells, R21 memory per cell, R22 memory in a flood, R27 how often the chaos test fails,
R28 listeners on a wildcard address, R31 to R34 elastic jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import deaths
import elastic
import sessions

FIGURES: dict[str, tuple[str, Callable[..., str]]] = {
    "R1": ("a rank killed in an allreduce of 16 MB, until each survivor has the error", deaths.known),
    "R2": ("a rank stopped, or hung in C code, until the dashboard names it", sessions.time_to_name),
    "R3": ("ranks stopped for at most 400 ms during allreduces", deaths.false_deaths),
    "R4": (
        "an idle rank killed, a spare being warm, until an allreduce of all ranks is right again (R5 with it)",
        sessions.usable_again,
    ),
    "R8": ("training with a rank killed every 29 s, against the same steps without", sessions.throughput),
    "R10": ("interrupt in a loop of 64 MB allreduces", sessions.interrupts),
    "R11": ("kernel killed while ranks wait in a collective (R12 with it)", sessions.orphans),
    "R20": ("cells one after the other for ten minutes", sessions.ten_minutes),
    "R21": ("memory per cell", sessions.per_cell),
    "R22": ("a flood from every rank", sessions.flood),
    "R27": ("the chaos test, run again and again", sessions.flakes),
    "R31": ("a rank of an elastic job killed, until the next step with a new process in its slot", elastic.killed),
    "R32": ("the same where the others go on at once, and the new process joins later", elastic.killed_and_left),
    "R33": ("an elastic job of two ranks has a host of two more: the pause of the steps", elastic.grown),
    "R34": ("an elastic job that loses a rank every 30 s, against the same without deaths", elastic.kept),
    "R28": ("listeners on a wildcard address", sessions.listeners),
}


def main() -> None:
    """Measure the figures of the command line, or all; write rows of a table."""
    for chosen in sys.argv[1:] or FIGURES:
        name, _, times = chosen.partition("=")
        text, measure = FIGURES[name]
        often = [float(times) if "." in times else int(times)] if times else []
        sys.stdout.write(f"| {name} | {text} | {measure(*often)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
