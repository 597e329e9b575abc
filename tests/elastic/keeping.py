"""Training whose every bit is compared: model, optimizer, generator, samples; a plan lists which rank is killed when.

    python keeping.py PLAN         a JSON file

Terms of the plan.
  how         guard (a StepGuard, no commits), or commit (one after every second step)
  kills       step -> {place: [workers]}; a place is backward, voted or stepped; each worker once
  checkpoint  a folder, or null
  end         file that takes all bits from rank 0
  calls       folder in which each worker leaves a file with how many steps it has begun
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import hvd_kernel.torch as hvd

STEPS, SAMPLES, BATCH = 8, 64, 4

plan = json.loads(Path(sys.argv[1]).read_text())
worker = int(os.environ["HVD_WORKER"])


def act(step: int, place: str) -> None:
    if worker in plan["kills"].get(str(step), {}).get(place, []):
        os.kill(os.getpid(), signal.SIGKILL)


def bits(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return [(str(key), bits(each)) for key, each in value.items()]
    return value


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(worker)  # a newcomer has other values
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
    )
    images = torch.rand(SAMPLES, 6, generator=torch.Generator().manual_seed(3))
    sampler = hvd.elastic.ElasticSampler(images, seed=5)
    generator = torch.Generator().manual_seed(worker)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, generator=generator, step=0, seen=[])
    checkpoint = None
    if plan["checkpoint"]:
        checkpoint = hvd.elastic.Checkpoint(plan["checkpoint"], every=2)
        checkpoint.attach(state)
    begun = 0

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        nonlocal begun
        guard = hvd.elastic.StepGuard(state)
        batch = 0
        while state.step < STEPS:
            begun += 1
            mine = sampler.get_indices(batch, BATCH)
            noise = torch.rand(3, generator=generator)
            optimizer.zero_grad()
            (model(images[mine]) * noise).sum().backward()
            act(state.step, "backward")
            state.seen.append(sorted(index for each in hvd.allgather_object(mine) for index in each))
            sampler.record_batch(batch, BATCH)
            batch += 1
            if plan["how"] == "guard":
                with guard:
                    act(state.step, "voted")
                    optimizer.step()
                    state.step += 1
            else:
                optimizer.step()
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
                    if checkpoint is not None:
                        checkpoint.wait()
            act(state.step, "stepped")

    train(state)
    if hvd.rank() == 0:
        parts = [model, optimizer, sampler]
        whole = [*(bits(part.state_dict()) for part in parts), bits(generator.get_state()), state.step, state.seen]
        Path(plan["end"]).write_text(repr(whole))
    Path(plan["calls"], str(worker)).write_text(str(begun))


if __name__ == "__main__":
    main()
