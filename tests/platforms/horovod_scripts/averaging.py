"""Averaged gradients in one process: the result that the scripts must reach, bit for bit, on two ranks.

Half of a sum of two is exact, so the order in which ranks are added does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mnist
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

RANKS = 2
Loss = Callable[[], torch.Tensor]


def train(optimizer: torch.optim.Optimizer, steps: Iterable[tuple[Loss, Loss]]) -> None:
    """One step per pair of losses, each of which is one rank's."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for losses in steps:
        first, second = (torch.autograd.grad(loss(), parameters) for loss in losses)
        for parameter, *gradients in zip(parameters, first, second, strict=True):
            parameter.grad = (gradients[0] + gradients[1]) / RANKS
        optimizer.step()


def digits() -> dict[str, object]:
    """Return what mnist.py saves."""
    args = mnist.parser.parse_args([])
    torch.manual_seed(args.seed)
    model = mnist.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * RANKS, momentum=args.momentum)
    batches = [_loader(True, rank, args.batch_size) for rank in range(RANKS)]
    for epoch in range(1, args.epochs + 1):
        for each in batches:
            each.sampler.set_epoch(epoch)
        train(optimizer, (tuple(_nll(model, *batch) for batch in pair) for pair in zip(*batches, strict=True)))
    found = [_measured(model, _loader(False, rank, args.batch_size)) for rank in range(RANKS)]
    return {"model": model.state_dict(), "metrics": tuple(_mean(*values) for values in zip(*found, strict=True))}


def benchmark() -> dict[str, object]:
    """Return what synthetic_benchmark.py saves: rank 0's model, each rank's images, five steps."""
    ranks = []
    for rank in range(RANKS):
        torch.manual_seed(rank)
        ranks.append((models.resnet50(), torch.randn(2, 3, 32, 32), torch.LongTensor(2).random_() % 1000))
    model = ranks[0][0]
    losses = tuple(lambda data=data, target=target: F.cross_entropy(model(data), target) for _, data, target in ranks)
    train(torch.optim.SGD(model.parameters(), lr=0.01 * RANKS), [losses] * 5)
    return {"model": model.state_dict()}


def without_a_failure() -> dict[str, object]:
    """Return what elastic.py saves; its one restart must have no effect."""
    torch.manual_seed(7)
    rows = torch.arange(48.0).reshape(16, 3) / 48
    model = torch.nn.Linear(3, 1)
    mine = [rows[rank::RANKS].split(2) for rank in range(RANKS)]
    steps = [tuple(lambda data=data: (model(data) ** 2).mean() for data in pair) for pair in zip(*mine, strict=True)]
    train(torch.optim.SGD(model.parameters(), lr=0.125), steps * 2)
    return {"model": model.state_dict(), "epoch": 2, "resets": [RANKS]}


def _loader(train: bool, rank: int, batch_size: int) -> DataLoader:
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST("data", train=train, transform=transform)
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset, RANKS, rank))


def _nll(model: torch.nn.Module, data: torch.Tensor, target: torch.Tensor) -> Loss:
    return lambda: F.nll_loss(model(data), target)


@torch.no_grad()
def _measured(model: torch.nn.Module, batches: DataLoader) -> tuple[float, float]:
    loss = correct = 0.0
    for data, target in batches:
        output = model(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += output.argmax(dim=1).eq(target).sum().item()
    return loss / len(batches.sampler), correct / len(batches.sampler)


def _mean(first: float, second: float) -> float:
    return ((torch.tensor(first) + torch.tensor(second)) / RANKS).item()


EXPECTED = {"mnist.py": digits, "synthetic_benchmark.py": benchmark, "elastic.py": without_a_failure}
