"""Start of a notebook's four ranks that share a GPU, beside four on the CPU, in turns. Markdown; fails beyond 1.5 times.

python -P tools/gpu/start.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

RANKS = 4
MOST = 1.5
KINDS = {"CPU": "none", "GPU": "0"}
READY, FIRST = "ready, with torch imported", "their first allreduce, after that"
SUM = """
import hvd_kernel.torch as hvd
hvd.init()
place = "cuda" if torch.cuda.is_available() else "cpu"
summed = hvd.allreduce(torch.ones(4, device=place), op=hvd.Sum).tolist()
assert summed == [float(hvd.size())] * 4, summed
"""


def _run(session: Any, code: str) -> None:
    run = session.run(code)
    while not run.done:
        run.next(0.1)
    if run.failures:
        raise RuntimeError(f"a rank failed: {run.failures}")


def start(gpus: str) -> dict[str, float]:
    """Return the seconds of each phase."""
    from hvd_kernel.cluster import Session
    from hvd_kernel.processes.cluster_spec import ClusterSpec

    began = time.monotonic()
    session = Session.start(ClusterSpec(n=RANKS, gpus=gpus))
    try:
        _run(session, "import torch")
        ready = time.monotonic()
        _run(session, SUM)
        return {READY: ready - began, FIRST: time.monotonic() - ready}
    finally:
        session.stop()


def main(rounds: int) -> int:
    """Print a table of medians; return the exit status."""
    taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, gpus in KINDS.items():
            taken[kind].append(start(gpus))
    print(
        f"\n{RANKS} ranks of a notebook, seconds, medians of {rounds} in turns:\n\n| | CPU | one GPU | GPU / CPU |\n| --- | --- | --- | --- |"
    )
    ratios = {}
    for phase in (READY, FIRST):
        cpu, gpu = (statistics.median(times[phase] for times in taken[kind]) for kind in KINDS)
        ratios[phase] = gpu / cpu
        print(f"| {phase} | {cpu:.2f} | {gpu:.2f} | {gpu / cpu:.2f} |")
    missed = ratios[READY] > MOST
    print(
        f"\n- {'MISSED: a' if missed else 'A'} start with a GPU takes {ratios[READY]:.2f} times as long, at most {MOST}",
        flush=True,
    )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 3))
