"""The measurement inside each rank: values first, then times, all contenders in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch

from hvd_kernel.bench.api import hvd
from hvd_kernel.bench.contenders import Contender

_SAMPLE_S = 0.02  # a sample takes about so long
_MOST_CALLS = 1000


@dataclass(frozen=True)
class Case:
    """What is reduced."""

    nbytes: int
    dtype: torch.dtype
    op: str

    @property
    def count(self) -> int:
        """Elements: at least one."""
        return max(1, self.nbytes // self.dtype.itemsize)


@dataclass
class Samples:
    """Of one case: seconds by contender, one for each round, and whose values were wrong."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


def values(case: Case, rank: int) -> torch.Tensor:
    """Return what a rank brings: small whole numbers, so that every dtype gives the exact result."""
    index = torch.arange(case.count)
    if case.op == "product":
        return (1 + (index + rank) % 2).to(case.dtype)
    return (index % 5 + rank).to(case.dtype)


def expected(case: Case, size: int) -> torch.Tensor:
    """Return the result that all ranks must get."""
    both: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": torch.add,
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
    }
    every = (values(case, rank).to(torch.int64) for rank in range(size))  # one at a time: there may be many ranks
    return reduce(both[case.op], every).to(case.dtype)


def measure(case: Case, contenders: Sequence[Contender], rounds: int) -> Samples:
    """Take samples of one case. Collective; every rank gets the same."""
    buffers = _buffers(case, contenders)
    taking_part = [contender for contender in contenders if contender.name in buffers]
    found = Samples({contender.name: [] for contender in taking_part})
    mine, right = values(case, hvd.rank()), expected(case, hvd.size())
    calls: dict[str, int] = {}
    for number in range(rounds + 1):  # the first one tells how many calls make a sample
        for turn in range(len(taking_part)):
            contender = taking_part[(turn + number) % len(taking_part)]
            name = contender.name
            buffers[name].copy_(mine)
            contender.allreduce(buffers[name], case.op)
            if contender.reduces and _slowest(float(not torch.equal(buffers[name], right))) > 0:
                found.wrong.add(name)
            buffers[name].fill_(1 if case.op == "product" else 0)  # stays what it is, call after call
            seconds = _sample(contender, buffers[name], case.op, calls.get(name, 3))
            if number == 0:
                calls[name] = max(1, min(_MOST_CALLS, int(_SAMPLE_S / seconds)))
            else:
                found.seconds[name].append(seconds)
    buffers.clear()
    for contender in taking_part:
        contender.release()
    return found


def _buffers(case: Case, contenders: Sequence[Contender]) -> dict[str, torch.Tensor]:
    found = {}
    for contender in contenders:
        with contextlib.suppress(TypeError):  # it has no such dtype
            found[contender.name] = contender.buffer(case.count, case.dtype)
    return found


def _sample(contender: Contender, tensor: torch.Tensor, op: str, calls: int) -> float:
    """Return the slowest rank's mean time of a call."""
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        contender.allreduce(tensor, op)
    return _slowest((time.perf_counter() - begin) / calls)


def _slowest(value: float) -> float:
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="bench.slowest", op=hvd.Max).item())
