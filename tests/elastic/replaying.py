"""Replay of an elastic soak without a fault: the steps of its history, each on as many ranks of one job as it had.

hvdrun -np 4 python replaying.py FOLDER SAMPLES      replay.pt: the parameters
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from soaking import gradient, model_and_data

import hvd_kernel.torch as hvd

MOST = 4


def main(folder: Path, samples: int) -> None:
    torch.set_num_threads(1)
    sets = [hvd.ProcessSet(range(size)) for size in range(1, MOST)]
    hvd.init(process_sets=sets)
    sets.append(hvd.global_process_set)
    model, images, labels = model_and_data(samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = 0
    for _, batches in torch.load(folder / "end.pt", weights_only=False)["history"]:
        size = len(batches)
        if size > before:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        before = size
        if hvd.rank() < size:
            gradient(model, images, labels, batches[hvd.rank()])
            if size > 1:
                gradients = [parameter.grad for parameter in model.parameters()]
                hvd.grouped_allreduce_(gradients, op=hvd.Average, process_set=sets[size - 1])
            optimizer.step()
    if hvd.rank() == 0:
        torch.save(model.state_dict(), folder / "replay.pt")
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
