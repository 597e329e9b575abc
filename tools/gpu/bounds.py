"""Bounds of the table that side_by_side.py measures on a GPU, and the rows that miss them. Pure.

Terms.
  limit  the time that an allreduce's traffic takes at the speed at which the device copies within itself (measure.py)
  none   a step without reduction
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

GPT2, RESNET = "GPT-2 small, bf16", "ResNet-50, batch 32, amp"
NONE, DEFAULT, ONE_GROUP, CYCLE, STAGED, DDP = "none", "default", "num_groups=1", "cycle 5 ms", "staged", "DDP, Gloo"
LEAST_SHARE = 0.8
"""Of the limit, which an allreduce of 64 MiB or more has to reach where ranks that share a device are clients of MPS."""
MOST = {  # (model, ranks, MPS) -> how many times as long as without reduction a step may take
    (GPT2, 2, True): 1.10,
    (GPT2, 4, True): 1.10,
    (GPT2, 2, False): 1.5,
    (GPT2, 4, False): 1.5,
    (RESNET, 2, True): 1.15,
    (RESNET, 4, True): 1.25,
}
PEERS = (ONE_GROUP, DDP)
"""What the default has to beat; of GPT-2 it may be as fast, within the noise of a measurement."""
NOISE = 1.02


@dataclass(frozen=True)
class Row:
    """A measurement: task, number of ranks, MPS clients or time slices, and variant."""

    task: str
    ranks: int
    mps: bool
    way: str
    ms: float
    limit_ms: float = 0.0  # 0: none is given

    @property
    def share(self) -> float:
        """Return the share of the limit that the row reaches."""
        return self.limit_ms / self.ms

    def __str__(self) -> str:
        """Return the row of a Markdown table."""
        share = f"{100 * self.share:.0f} %" if self.limit_ms else ""
        return f"| {self.task} | {self.ranks} | {'yes' if self.mps else 'no'} | {self.way} | {self.ms:.3g} | {share} |"


HEAD = "| what | ranks | MPS | way | ms | of the limit |\n| --- | --- | --- | --- | --- | --- |"


def misses(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on each bound that these rows miss."""
    return [*_slow_rings(rows), *_slow_steps(rows), *_beaten(rows)]


def unmeasured(rows: Iterable[Row], expected: Iterable[tuple[str, int, bool, str]]) -> list[str]:
    """Return a sentence on each row that should be there."""
    measured = {(row.task, row.ranks, row.mps, row.way) for row in rows}
    return [f"{_label(*key[:3])}: {key[3]} was not measured" for key in expected if key not in measured]


def _slow_rings(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.mps and row.limit_ms and row.share < LEAST_SHARE:
            where = _label(row.task, row.ranks, row.mps)
            yield f"{where}: {row.way} reaches {100 * row.share:.0f} % of the limit, not {100 * LEAST_SHARE:.0f} %"


def _slow_steps(rows: Sequence[Row]) -> Iterator[str]:
    times = {(row.task, row.ranks, row.mps, row.way): row.ms for row in rows}
    for key, most in MOST.items():
        step, alone = times.get((*key, DEFAULT)), times.get((*key, NONE))
        if step is not None and alone is not None and step > most * alone:
            yield f"{_label(*key)}: a step takes {step / alone:.2f} times as long as without reduction, not {most:.2f}"


def _beaten(rows: Sequence[Row]) -> Iterator[str]:
    times = {(row.task, row.ranks, row.mps, row.way): row.ms for row in rows}
    for row in rows:
        if row.way == DEFAULT and row.task in {GPT2, RESNET}:
            for peer in PEERS:
                peer_ms = times.get((row.task, row.ranks, row.mps, peer))
                if peer_ms is not None and row.ms >= peer_ms * (NOISE if row.task == GPT2 else 1.0):
                    yield f"{_label(row.task, row.ranks, row.mps)}: {peer} takes {peer_ms:.3g} ms, the default {row.ms:.3g}"


def _label(task: str, ranks: int, mps: bool) -> str:
    return f"{task}, {ranks} ranks, {'with' if mps else 'without'} MPS"
