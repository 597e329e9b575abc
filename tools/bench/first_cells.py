"""First cells of a notebook: ``first_cells.py [ROUNDS] [--pool]``, JSON on stdout. Each round has a new kernel.

first: ``%%hvdrun -np 4`` of a kernel that has just started, until its reply; processor: what that took of the
processors, of kernel, supervisor and ranks, which a machine's other work disturbs least; step: the first step of an
optimizer, after a pause in which ranks import what is late. --pool: warm ranks are there before each kernel but the
first.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from contextlib import suppress

import psutil
from cell import Cell, Kernel

from hvd_kernel.processes import warm

PAUSE_S = 20.0
STEP = """%%hvdrun
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
before = time.monotonic()
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
round(time.monotonic() - before, 4)
"""


def one_kernel(*, with_pool: bool) -> dict[str, float]:
    """Return the seconds of its first cells."""
    with Kernel() as kernel:
        roots = [
            kernel.manager.provisioner.pid,
            *(int(cluster.holder.partition(":")[0]) for cluster in warm.clusters()),
        ]
        before = _processor_seconds(roots)
        cell = kernel.run("%%hvdrun -np 4\nrank")
        figures = {"first": cell.seconds, "processor": _processor_seconds(roots) - before}
        if with_pool:
            while not any(cluster.note.ready for cluster in warm.clusters()):
                time.sleep(0.1)
        else:
            time.sleep(PAUSE_S)
            figures["step"] = _largest(kernel.run(STEP))
    return figures


def _processor_seconds(roots: list[int]) -> float:
    """Return what these processes and all below them have used."""
    total = 0.0
    for root in roots:
        with suppress(psutil.Error):  # it has ended
            for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                used = process.cpu_times()
                total += used.user + used.system
    return total


def _largest(cell: Cell) -> float:
    """Return the largest number that a rank has given, of results as ``[0] 0.01``."""
    shown = [m["content"]["data"]["text/plain"] for m in cell.messages if "text/plain" in m["content"].get("data", {})]
    return max(float(number) for text in shown for number in re.findall(r"^\[[\d,-]+\] ([\d.]+)$", text, re.MULTILINE))


def main() -> None:
    """Measure, and tell the machine's load with it."""
    with_pool = "--pool" in sys.argv
    rounds = next((int(word) for word in sys.argv[1:] if word.isdecimal()), 3)
    os.environ |= {"HVD_SPARES": "0", "HVD_POOL": "5" if with_pool else "0"}
    load = os.getloadavg()[0]
    every = [one_kernel(with_pool=with_pool) for _ in range(rounds)]
    result = {name: [round(run[name], 3) for run in every] for name in every[0]}
    medians = {f"{name}_median": round(statistics.median(values), 3) for name, values in result.items()}
    json.dump({**result, **medians, "pool": with_pool, "load": [load, os.getloadavg()[0]]}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
