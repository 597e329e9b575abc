"""Training of the elastic soak: a torch model on an ElasticSampler that records each step and its number of ranks.

python soaking.py FOLDER SAMPLES

    step      the number of steps so far
    members   a line per rank of the newest generation: process id, host, slot
    history   of each step its number, its epoch and what samples each rank had, from all ranks; the last line counts
    end.pt    parameters, and how many steps there were
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import hvd_kernel.torch as hvd

BATCH = 2
FEATURES = 8
PACE_S = 0.02
GRID = 4096.0
"""Gradients are multiples of 1/GRID, whose sums are exact: their order, which hosts decide, is in no bit."""


def model_and_data(samples: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The same on every rank and in every run."""
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.rand(samples, FEATURES, generator=generator), torch.rand(samples, 1, generator=generator)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: torch.round(grad * GRID) / GRID)
    return model, images, labels


def gradient(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, samples: list[int]) -> None:
    """Leave this rank's gradient in the model."""
    model.zero_grad()
    torch.nn.functional.mse_loss(model(images[samples]), labels[samples]).backward()


def note(folder: Path, name: str, text: str) -> None:
    """As rank 0, write a file whole."""
    if hvd.rank() == 0:
        (folder / f"{name}.{os.getpid()}").write_text(text)
        (folder / f"{name}.{os.getpid()}").rename(folder / name)


def main(folder: Path, samples: int) -> None:
    torch.set_num_threads(1)
    hvd.init()
    model, images, labels = model_and_data(samples)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(range(samples), shuffle=True, seed=5)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, steps=0)

    def is_within_epoch() -> bool:
        """Tell whether a reset has interrupted this epoch, which is then completed."""
        return bool(sampler.processed_num or sampler.processed_indices)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        place = f"{os.getpid()} {os.environ['HOROVOD_HOSTNAME']} {os.environ['HVD_SLOT']}"
        note(folder, "members", "\n".join(hvd.allgather_object(place)))
        while is_within_epoch() or not hvd.broadcast_object((folder / "enough").exists()):
            for number in range(-(-len(sampler) // BATCH)):
                time.sleep(PACE_S)
                mine = sampler.get_indices(number, BATCH)
                gradient(model, images, labels, mine)
                optimizer.step()
                state.steps += 1
                with (folder / "history").open("a") as history:  # not in the state, which is copied at every commit
                    history.write(json.dumps([state.steps, state.epoch, hvd.allgather_object(mine)]) + "\n")
                sampler.record_batch(number, BATCH)
                state.commit()
                note(folder, "step", str(state.steps))
                if hvd.rank() == 0:
                    with (folder / "times").open("a") as times:
                        times.write(f"{time.time()} {hvd.size()} {os.environ['HVD_GENERATION']}\n")
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()

    train(state)
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "steps": state.steps}, folder / "end.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
