"""Gradients joined by Adasum, as a user of Horovod writes it."""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default=".")
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
apart = torch.zeros(hvd.size())
apart[hvd.rank()] = hvd.rank() + 1.0
alike = torch.tensor([3.0, -4.0])
together = torch.tensor([1.0, 1.0]) if hvd.rank() == 0 else torch.tensor([1.0, 0.0])

model = torch.nn.Linear(hvd.size(), 1, bias=False)
torch.nn.init.constant_(model.weight, 2.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum)
for _ in range(2):
    optimizer.zero_grad()
    model(apart).sum().backward()
    optimizer.step()

checkpoint = {
    "apart": hvd.allreduce(apart, op=hvd.Adasum, name="apart"),
    "alike": hvd.allreduce(alike, op=hvd.Adasum, name="alike"),
    "together": hvd.allreduce(together, op=hvd.Adasum, name="together"),
    "model": model.state_dict(),
}
torch.save(checkpoint, Path(args.checkpoints) / f"{hvd.rank()}-of-{hvd.size()}.pt")
