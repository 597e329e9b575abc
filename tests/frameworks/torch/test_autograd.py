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


def through_alltoall() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    splits = [q % 2 + 1 for q in range(size)]
    x = torch.ones(sum(splits) + 1, 3, requires_grad=True)  # the last row stays at home
    y, received = hvd.alltoall(x, splits, name="forth")
    assert not received.requires_grad
    same(received, torch.full((size,), rank % 2 + 1, dtype=torch.int32))
    (y * (rank + 1)).sum().backward()
    want = torch.tensor([float(q + 1) for q, rows in enumerate(splits) for _ in range(rows)] + [0.0])
    same(x.grad, want[:, None].expand(-1, 3).contiguous())
    x = torch.ones(2 * size, requires_grad=True)
    (hvd.alltoall(x, name="even") * (rank + 1)).sum().backward()
    same(x.grad, torch.arange(1, size + 1).float().repeat_interleave(2))
    twice = torch.ones(size, requires_grad=True)
    z = hvd.alltoall(twice)
    z.sum().backward()
    same(twice.grad, torch.ones(size))


def test_alltoall(ranks: RankPool) -> None:
    ranks.run(through_alltoall)


def through_reducescatter() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    owner = torch.tensor([r for r in range(size) for _ in range(rows // size + (r < rows % size))])
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = torch.ones(rows, 2, requires_grad=True)
        y = hvd.reducescatter(x, name=f"forth{op}", op=op, prescale_factor=2.0, postscale_factor=0.25)
        assert y.shape[0] == int((owner == rank).sum())
        (y * (rank + 1)).sum().backward()
        same(x.grad, ((owner + 1.0) * factor * 0.5)[:, None].expand(-1, 2).contiguous())
    xs = [torch.ones(rows, n, requires_grad=True) for n in (1, 3)]
    ys = hvd.grouped_reducescatter(xs, name="group", op=hvd.Sum)
    sum((y * (rank + 1)).sum() for y in ys).backward()
    for x in xs:
        same(x.grad, ((owner + 1.0) * size)[:, None].expand_as(x).contiguous())


def test_reducescatter(ranks: RankPool) -> None:
    ranks.run(through_reducescatter)


def through_grouped_allgather() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    xs = [torch.ones(rank + extra, 2, requires_grad=True) for extra in (0, 1)]
    ys = hvd.grouped_allgather(xs, name="forth")
    sum((y * torch.arange(y.shape[0]).float()[:, None] * (rank + 1)).sum() for y in ys).backward()
    for extra, x in enumerate(xs):
        begin = sum(r + extra for r in range(rank))
        want = torch.arange(begin, begin + rank + extra).float() * ((size + 1) / 2)
        same(x.grad, want[:, None].expand(-1, 2).contiguous())


def test_grouped_allgather(ranks: RankPool) -> None:
    ranks.run(through_grouped_allgather)


def through_operators() -> None:
    """Min, Max and Product are reduced the same way on the way back, as in Horovod; a graph may be walked twice."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    y = hvd.allreduce(x, name="max", op=hvd.Max)
    same(y.detach(), torch.full((2,), float(size)))
    (y * (rank + 1)).sum().backward()
    same(x.grad, torch.full((2,), float(size)))
    x = torch.ones(2, requires_grad=True)
    a, b = hvd.grouped_allreduce([x, 2 * x], name="twice", op=hvd.Sum)
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    same(x.grad, torch.full((2,), 3.0 * size))


def test_operators(ranks: RankPool) -> None:
    ranks.run(through_operators)


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


def through_group_piecewise() -> None:
    """Each result of a group is walked back by itself, without retain_graph: one node, several times."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    calls = {
        "allreduce": (lambda xs: hvd.grouped_allreduce(xs, name="a", op=hvd.Sum), float(size)),
        "allgather": (lambda xs: hvd.grouped_allgather(xs, name="g"), 1.0),
        "reducescatter": (lambda xs: hvd.grouped_reducescatter(xs, name="s", op=hvd.Sum), float(size)),
    }
    for name, (call, factor) in calls.items():
        xs = [torch.full((size, 2), float(rank + 1), requires_grad=True) for _ in range(3)]
        for number, y in enumerate(call(xs)):
            y.sum().backward()
            for later, x in enumerate(xs):
                want = factor if later <= number else 0.0
                same(x.grad, torch.full((size, 2), want), (name, number, later))


def test_groups_walked_back_piece_by_piece(ranks: RankPool) -> None:
    ranks.run(through_group_piecewise)


def rank_dependent() -> None:
    """Derivatives that tell ranks and places apart, checked against autograd over one process's copy of everything."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()

    def weights(r: int, shape: tuple[int, ...], salt: int) -> object:
        generator = torch.Generator().manual_seed(10 * salt + r)
        return torch.randint(-8, 9, shape, generator=generator).double()

    rows = 2 * size + 1
    counts = [rows // size + (r < rows % size) for r in range(size)]
    ends = [sum(counts[: r + 1]) for r in range(size)]
    mine = [weights(r, (rows, 2), 1).requires_grad_() for r in range(size)]
    x = mine[rank].detach().clone().requires_grad_()
    (hvd.reducescatter(x, "scatter", op=hvd.Sum) * weights(rank, (counts[rank], 2), 2)).sum().backward()
    total = sum(mine)
    sum(
        (total[end - n : end] * weights(r, (n, 2), 2)).sum()
        for r, (end, n) in enumerate(zip(ends, counts, strict=True))
    ).backward()
    same(x.grad, mine[rank].grad * size, "Horovod multiplies by the number of ranks")
    splits = [[(r + q) % 3 for q in range(size)] for r in range(size)]
    mine = [weights(r, (sum(splits[r]), 2), 3).requires_grad_() for r in range(size)]
    x = mine[rank].detach().clone().requires_grad_()
    got, _ = hvd.alltoall(x, splits[rank], name="exchange")
    (got * weights(rank, got.shape, 4)).sum().backward()
    arrived = [torch.cat([torch.split(mine[q], splits[q])[r] for q in range(size)]) for r in range(size)]
    same(got.detach(), arrived[rank].detach())
    sum((one * weights(r, one.shape, 4)).sum() for r, one in enumerate(arrived)).backward()
    same(x.grad, mine[rank].grad)
    for root in range(size):
        x = weights(rank, (4,), 5).requires_grad_()
        y = hvd.broadcast(x, root, name=f"root{root}")
        same(y.detach(), weights(root, (4,), 5))
        (y * weights(rank, (4,), 6)).sum().backward()
        mean = sum(weights(r, (4,), 6) for r in range(size)) / size
        same(x.grad, mean if rank == root else torch.zeros(4, dtype=torch.float64))


def test_rank_dependent_data(ranks: RankPool) -> None:
    ranks.run(rank_dependent)


def twice_derived() -> None:
    """A derivative is made of collectives that have one too: y = f(x), then x.grad of the square of d(y ** 3)/dx."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    own, whole = 36.0 * (rank + 1) ** 3, 36.0 * (size * (size * (size + 1) // 2)) ** 3
    calls = {
        "allreduce": (lambda x: hvd.allreduce(x, name="a", op=hvd.Sum), whole),
        "group": (lambda x: hvd.grouped_allreduce([x], name="b", op=hvd.Sum)[0], whole),
        "allgather": (lambda x: hvd.allgather(x, name="c"), own / size),
        "gathered group": (lambda x: hvd.grouped_allgather([x], name="d")[0], own / size),
        "broadcast": (lambda x: hvd.broadcast(x, size - 1, name="e"), own / size if rank == size - 1 else 0.0),
        "alltoall": (lambda x: hvd.alltoall(x, name="f"), own),
        "reducescatter": (lambda x: hvd.reducescatter(x, name="g", op=hvd.Sum), whole),
        "scattered group": (lambda x: hvd.grouped_reducescatter([x], name="h", op=hvd.Sum)[0], whole),
    }
    for name, (call, want) in calls.items():
        x = torch.full((size,), rank + 1.0, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad((call(x) ** 3).sum(), x, create_graph=True)
        assert first.requires_grad, f"{name}: the derivative is a constant"
        first.square().sum().backward()
        torch.testing.assert_close(x.grad, torch.full((size,), want, dtype=torch.float64), msg=name)


def test_derivatives_have_derivatives(ranks: RankPool) -> None:
    ranks.run(twice_derived)
