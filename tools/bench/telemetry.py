"""Cost of telemetry in a training cell on two ranks: on and off in turn, in one cluster. JSON on stdout.

"On" is what a user has: the step hook, ``hvd.log`` in every step, five samples a second from every rank and the live
dashboard in the notebook's kernel. "Off" takes all of it away. The ratio is throughput on / throughput off.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cell import Kernel

ROUNDS = 9
SETUP = """%%hvdrun -np 2
import time, torch
from hvd_kernel.core import metrics
from hvd_kernel.worker import telemetry
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(4),
    torch.nn.Flatten(), torch.nn.Linear(64 * 36, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
x, y = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))
count, log, period = metrics.step, metrics.log, telemetry._PERIOD_S

def train(steps, log):
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log(loss=loss)
    return time.perf_counter() - start

train(50, log)"""
ON = """%%hvdrun -o seconds
telemetry._PERIOD_S, metrics.step = period, count
train(120, log)"""
OFF = """%%hvdrun -o seconds
telemetry._PERIOD_S, metrics.step = 3600.0, lambda samples=0: None
train(120, lambda **values: None)"""


def main() -> None:
    """Alternate; the slower rank's time counts."""
    with Kernel() as kernel:
        kernel.run(SETUP)

        def seconds(cell: str) -> float:
            kernel.run(cell)
            shown = kernel.run("print(max(seconds.values()))").messages
            return float(next(m["content"]["text"] for m in shown if m["msg_type"] == "stream"))

        pairs = [(seconds(ON), seconds(OFF)) for _ in range(ROUNDS)]
        kernel.run("%hvd stop")
    ratios = sorted(off / on for on, off in pairs)
    json.dump(
        {
            "on_s": round(statistics.median(on for on, _ in pairs), 3),
            "off_s": round(statistics.median(off for _, off in pairs), 3),
            "throughput_on_over_off": round(statistics.median(ratios), 4),
            "range": [round(ratios[0], 4), round(ratios[-1], 4)],
            "rounds": ROUNDS,
        },
        sys.stdout,
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
