"""Benchmark program of a rank: ``python -m hvd_kernel.bench.rank PLAN``. Rank 0 writes the results.

It checks values, then measures times, with all contenders in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import torch

from hvd_kernel.bench.contenders import Contender, contenders, hvd
from hvd_kernel.bench.report import as_json, results

_SAMPLE_S = 0.02  # approximate duration of a sample
_MOST_CALLS = 1000


@dataclass(frozen=True)
class Case:
    """Size, dtype and operation of a reduction."""

    nbytes: int
    dtype: torch.dtype
    op: str

    @property
    def count(self) -> int:
        """Number of elements, at least one."""
        return max(1, self.nbytes // self.dtype.itemsize)


@dataclass
class Samples:
    """Samples of a case: seconds of each round by contender, and the contenders with wrong values."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


def values(case: Case, rank: int) -> torch.Tensor:
    """Return the input of a rank: small integers, for which the result is exact in every dtype."""
    index = torch.arange(case.count)
    if case.op == "product":
        return (1 + (index + rank) % 2).to(case.dtype)
    return (index % 5 + rank).to(case.dtype)


def expected(case: Case, size: int) -> torch.Tensor:
    """Return the expected result on all ranks."""
    operations: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": torch.add,
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
    }
    inputs = (values(case, rank).to(torch.int64) for rank in range(size))  # lazy: there may be many ranks
    return reduce(operations[case.op], inputs).to(case.dtype)


def measure(case: Case, contenders: Sequence[Contender], rounds: int) -> Samples:
    """Measure samples of a case. Collective; the result is the same on every rank."""
    buffers = _buffers(case, contenders)
    participants = [contender for contender in contenders if contender.name in buffers]
    samples = Samples({contender.name: [] for contender in participants})
    values_of_rank, result = values(case, hvd.rank()), expected(case, hvd.size())
    calls: dict[str, int] = {}
    for number in range(rounds + 1):  # the first round determines the number of calls in a sample
        for turn in range(len(participants)):
            contender = participants[(turn + number) % len(participants)]
            name = contender.name
            buffers[name].copy_(values_of_rank)
            contender.allreduce(buffers[name], case.op)
            if contender.reduces and _slowest(float(not torch.equal(buffers[name], result))) > 0:
                samples.wrong.add(name)
            buffers[name].fill_(1 if case.op == "product" else 0)  # unchanged by reductions
            seconds = _sample(contender, buffers[name], case.op, calls.get(name, 3))
            if number == 0:
                calls[name] = max(1, min(_MOST_CALLS, int(_SAMPLE_S / seconds)))
            else:
                samples.seconds[name].append(seconds)
    buffers.clear()
    for contender in participants:
        contender.release()
    return samples


def _buffers(case: Case, contenders: Sequence[Contender]) -> dict[str, torch.Tensor]:
    buffers = {}
    for contender in contenders:
        with contextlib.suppress(TypeError):  # the dtype is not supported
            buffers[contender.name] = contender.buffer(case.count, case.dtype)
    return buffers


def _sample(contender: Contender, tensor: torch.Tensor, op: str, calls: int) -> float:
    """Return the mean time of a call on the slowest rank."""
    hvd.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        contender.allreduce(tensor, op)
    return _slowest((time.perf_counter() - begin) / calls)


def _slowest(value: float) -> float:
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="bench.slowest", op=hvd.Max).item())


_NUMBERS = (
    ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE"),
    ("PMI_RANK", "HOROVOD_RANK"),
    ("PMI_SIZE", "HOROVOD_SIZE"),
)


def main(text: str) -> None:
    """Measure according to a plan in JSON."""
    plan = json.loads(text)
    torch.set_num_threads(1)
    for mpi, horovod in _NUMBERS:
        if mpi in os.environ:
            os.environ[horovod] = os.environ[mpi]
    hvd.init()
    options = {name: plan[name] for name in ("shared", "limit", "beside_mpi")}
    available = contenders(hvd.rank(), hvd.size(), **options)
    measured = []
    for nbytes in plan["sizes"]:
        case = Case(nbytes, getattr(torch, plan["dtype"]), plan["op"])
        samples = measure(case, available, plan["rounds"])
        measured += results(case.count * case.dtype.itemsize, samples.seconds, samples.wrong, hvd.size())
    if hvd.rank() == 0:
        Path(plan["file"]).write_text(json.dumps(as_json(measured)))
    for contender in available:
        contender.close()
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
