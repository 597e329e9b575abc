"""Derivatives of the collectives: Horovod's definitions, exact values."""

from __future__ import annotations

import pytest
from hvdtest.exact import same
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


def through_allreduce() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    whole = size * (size + 1) / 2
    weights = torch.full((4,), float(rank + 1))
    for op, factor in ((hvd.Sum, whole), (hvd.Average, whole / size)):
        x = torch.ones(4, requires_grad=True)
        y = hvd.allreduce(x, name=f"forth{op}", op=op)
        assert y.requires_grad
        (y * weights).sum().backward()
        same(x.grad, torch.full((4,), factor))
    x = torch.ones(4, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).sum().backward()
    same(x.grad, torch.full((4,), size * 0.5))
    x = torch.ones(4, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert y.dtype == torch.float32
    (y * weights).sum().backward()
    same(x.grad, torch.full((4,), whole))
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad


def test_allreduce(ranks: RankPool) -> None:
    ranks.run(through_allreduce)


def through_group() -> None:
    import torch

    import hvd_kernel.torch as hvd

    size = hvd.size()
    xs = [torch.ones(n, dtype=torch.float64, requires_grad=True) for n in (1, 2, 3)]
    ys = hvd.grouped_allreduce(xs, name="forth", op=hvd.Sum)
    sum((y * (i + 1) * (hvd.rank() + 1)).sum() for i, y in enumerate(ys)).backward()
    for i, x in enumerate(xs):
        same(x.grad, torch.full((i + 1,), (i + 1) * size * (size + 1) / 2, dtype=torch.float64))


def test_grouped_allreduce(ranks: RankPool) -> None:
    ranks.run(through_group)


def through_allgather() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    x = torch.ones(rank + 1, 2, requires_grad=True)
    y = hvd.allgather(x, name="forth")
    start = rank * (rank + 1) // 2
    weights = torch.arange(y.shape[0]).float()[:, None] * (rank + 1)
    (y * weights).sum().backward()
    mean = (size + 1) / 2
    same(x.grad, (torch.arange(start, start + rank + 1).float()[:, None] * mean).expand(-1, 2).contiguous())


def test_allgather(ranks: RankPool) -> None:
    ranks.run(through_allgather)


def through_broadcast() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    x = torch.full((3,), float(rank), requires_grad=True)
    y = hvd.broadcast(x, size - 1, name="forth")
    same(y.detach(), torch.full((3,), float(size - 1)))
    (y * (rank + 1)).sum().backward()
    same(x.grad, torch.full((3,), (size + 1) / 2 if rank == size - 1 else 0.0))


def test_broadcast(ranks: RankPool) -> None:
    ranks.run(through_broadcast)
