"""Benchmark program of a rank: ``python -m hvd_kernel.bench.rank PLAN``. Rank 0 writes the results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from hvd_kernel.bench.contenders import contenders, hvd
from hvd_kernel.bench.measure import Case, measure
from hvd_kernel.bench.report import as_json, results

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
