"""Cost of commits, guards and checkpoints per training step, all variants in turn. JSON on stdout.

    hvdrun -np 2 python tools/bench/commits.py

A training of 1.9 million parameters with Adam: 22 MB of state on each rank. The ratio is a way's time for its steps
divided by that of the same steps alone, of the slower rank; the same of processor time, which other work on the machine
does not change much.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch

import hvd_kernel.torch as hvd

ROUNDS, STEPS, EVERY = 9, 20, 10


class Training:
    """A model, its state, and the variants of a step."""

    def __init__(self, folder: str) -> None:
        torch.manual_seed(0)
        wide = [torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*wide, torch.nn.Linear(1024, 10))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters()), named_parameters=self.model.named_parameters()
        )
        self.images, self.labels = torch.randn(128, 784), torch.randint(0, 10, (128,))
        self.sampler = hvd.elastic.ElasticSampler(range(1 << 20))
        self.state = hvd.elastic.TorchState(self.model, self.optimizer, sampler=self.sampler, batch=0)
        self.guard = hvd.elastic.StepGuard(self.state)
        self.checkpoint = hvd.elastic.Checkpoint(folder, every=1 << 40)
        self.checkpoint.attach(self.state)
        self.ways: dict[str, Callable[[int], None]] = {
            "alone": lambda _: self.optimizer.step(),
            "guard": self.guarded,
            "commit": self.committed,
            f"commit of every {EVERY}th": lambda number: self.committed(number, EVERY),
            f"checkpoint of every {EVERY}th": self.stored,
        }

    def guarded(self, _: int) -> None:
        self.sampler.record_batch(0, 1)
        with self.guard:
            self.optimizer.step()
            self.state.batch += 1

    def committed(self, number: int, every: int = 1) -> None:
        self.optimizer.step()
        self.sampler.record_batch(0, 1)
        if number % every == 0:
            self.state.commit()

    def stored(self, number: int) -> None:
        self.committed(number, EVERY)
        if number % EVERY == 0:
            self.checkpoint.save()

    def seconds(self, way: Callable[[int], None]) -> tuple[float, float]:
        """Return the seconds of the steps and of the processor on the slowest rank, including pending writes."""
        hvd.barrier()
        start, processor = time.perf_counter(), time.process_time()
        for number in range(1, STEPS + 1):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
            way(number)
        took = time.perf_counter() - start
        self.checkpoint.wait()
        sample = torch.tensor([took, time.process_time() - processor])
        slowest, busiest = hvd.allreduce(sample, op=hvd.Max).tolist()
        return slowest, busiest


def main() -> None:
    """Alternate the variants, and print medians."""
    torch.set_num_threads(1)
    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        training = Training(hvd.broadcast_object(folder))
        training.state.sync_from()
        ways = training.ways.items()
        rounds = [{name: training.seconds(way) for name, way in ways} for _ in range(1 + ROUNDS)][1:]
        hvd.barrier()
    results = {}
    for name in training.ways:
        ratios, processor = (sorted(row[name][which] / row["alone"][which] for row in rounds) for which in (0, 1))
        results[name] = {
            "step_ms": round(1000 * statistics.median(row[name][0] for row in rounds) / STEPS, 2),
            "ratio": round(statistics.median(ratios), 3),
            "range": [round(ratios[0], 3), round(ratios[-1], 3)],
            "processor_ratio": round(statistics.median(processor), 3),
        }
    if hvd.rank() == 0:
        sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
