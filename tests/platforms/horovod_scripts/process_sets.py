"""Even and odd ranks that work apart from each other, as a user of Horovod writes it."""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--checkpoints", default=".")
args = parser.parse_args()

even = hvd.ProcessSet(range(0, args.ranks, 2))
odd = hvd.ProcessSet(range(1, args.ranks, 2))
hvd.init(process_sets=[even, odd])
mine = even if even.included() else odd
value = torch.tensor([float(hvd.rank() + 1)])

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), process_set=mine)
optimizer.zero_grad()
model(value).sum().backward()
optimizer.step()

checkpoint = {
    "place": (mine.rank(), mine.size()),
    "sum": hvd.allreduce(value, op=hvd.Sum, process_set=mine, name="sum"),
    "gathered": hvd.allgather(value, process_set=mine, name="gathered"),
    "everybody": hvd.allreduce(value, op=hvd.Sum, name="everybody"),
    "model": model.state_dict(),
}
late = hvd.add_process_set(list(range(1, args.ranks)))
if late.included():
    checkpoint["late"] = hvd.broadcast(value, root_rank=args.ranks - 1, process_set=late, name="late")
hvd.remove_process_set(late)
torch.save(checkpoint, Path(args.checkpoints) / f"{hvd.rank()}-of-{hvd.size()}.pt")
hvd.shutdown()
