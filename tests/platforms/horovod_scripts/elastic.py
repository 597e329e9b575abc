"""Training that continues after a rank has failed once, as a user of Horovod writes it."""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import ElasticSampler, TorchState

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.125)
parser.add_argument("--checkpoints", default=".")
args = parser.parse_args()

hvd.init()
torch.manual_seed(7)
torch.set_num_threads(1)
dataset = torch.utils.data.TensorDataset(torch.arange(48.0).reshape(16, 3) / 48)
sampler = ElasticSampler(dataset, shuffle=False)
loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
resets = []


def fail_once(epoch, batch):
    """Fail once, as the network of a cluster may."""
    if (epoch, batch) == (1, 2) and hvd.rank() == hvd.size() - 1 and not resets:
        raise HorovodInternalError("a connection was lost")


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        for batch, (data,) in enumerate(loader):
            fail_once(state.epoch, batch)
            optimizer.zero_grad()
            (model(data) ** 2).mean().backward()
            optimizer.step()
            state.sampler.record_batch(batch, args.batch_size)
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
checkpoint = {"model": model.state_dict(), "epoch": state.epoch, "resets": resets}
torch.save(checkpoint, Path(args.checkpoints) / f"{hvd.rank()}-of-{hvd.size()}.pt")
