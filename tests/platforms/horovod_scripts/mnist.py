"""Digits on many ranks, as a user of Horovod writes it."""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn, optim
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

parser = argparse.ArgumentParser(description="PyTorch MNIST with Horovod")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--log-interval", type=int, default=2)
parser.add_argument("--checkpoints", default=".")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=5)
        self.fc1 = nn.Linear(4 * 12 * 12, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def loader(train, args):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST("data", train=train, download=True, transform=transform)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    return torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, batches):
    model.eval()
    loss = correct = 0.0
    with torch.no_grad():
        for data, target in batches:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    count = len(batches.sampler)
    return metric_average(loss / count, "avg_loss"), metric_average(correct / count, "avg_accuracy")


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    cuda = not args.no_cuda and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(1)

    train_batches, test_batches = loader(True, args), loader(False, args)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_batches.sampler.set_epoch(epoch)
        for batch, (data, target) in enumerate(train_batches):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch % args.log_interval == 0:
                print(f"epoch {epoch} batch {batch}/{len(train_batches)} loss {loss.item():.6f}")
        metrics = test(model, test_batches)
        if hvd.rank() == 0:
            print("test loss {:.4f}, accuracy {:.2%}".format(*metrics))

    name = f"{hvd.rank()}-of-{hvd.size()}.pt"
    torch.save({"model": model.state_dict(), "metrics": metrics}, Path(args.checkpoints) / name)


if __name__ == "__main__":
    main()
