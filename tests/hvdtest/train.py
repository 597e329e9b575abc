"""Cells of a notebook, for: hvdrun -np 4 python train.py"""

import argparse

import hvd_kernel.torch as hvd

hvd.init()
rank = hvd.rank()

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=3)
parser.add_argument("--steps", type=int, default=6)
arguments = parser.parse_args()

# %% cell [5]
seed = arguments.seed
steps = arguments.steps
import torch
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())

# %% cell [6]
torch.manual_seed(seed + rank)
for step in range(steps):
    batch = torch.randn(4, 8)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()

# %% cell [8]
import json
losses = json.dumps(hvd.allgather_object(loss.item().hex()))
print(losses if rank == 0 else "", end="")
