"""Derivatives of the collectives beyond the table of frameworks/conformance: compression, operators, parts of groups, twice."""

from __future__ import annotations

import pytest
from hvdtest.exact import same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch

pytestmark = pytest.mark.mp


def compressed() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = torch.ones(4, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert y.dtype == torch.float32
    (y * (rank + 1)).sum().backward()
    same(x.grad, torch.full((4,), size * (size + 1) / 2))
    with torch.no_grad():
        assert not hvd.allreduce(x).requires_grad
    _, received = hvd.alltoall(torch.ones(size, requires_grad=True), [1] * size, name="counts")
    assert not received.requires_grad


def test_compression(ranks: RankPool) -> None:
    ranks.run(compressed)


def through_operators() -> None:
    """Gradients of Min, Max and Product are reduced with the same operator, as in Horovod; a graph may be used twice."""
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


def through_group_piecewise() -> None:
    """Backward runs for each result of a group separately, without retain_graph: one node, several times."""
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


def twice_derived() -> None:
    """A derivative is made of collectives that have one too: y = f(x), then x.grad of the square of d(y ** 3)/dx."""
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
