"""Sparse gradients: the sums of sparse_allreduce_async, and how an optimizer sends them."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"),))


def of_rank(rank: int, dtype: str = "float64") -> object:
    """Rank r has r + 1 entries, some in one place, none on rank 2; all sums are exact."""
    count = 0 if rank == 2 else rank + 2
    rows = torch.arange(count) % 2 + rank
    values = (torch.arange(count * 3).reshape(count, 3) + 10 * rank).to(getattr(torch, dtype))
    return torch.sparse_coo_tensor(rows[None], values, (7, 3))


def summed(dtype: str) -> None:
    rank, size = hvd.rank(), hvd.size()
    want = sum(of_rank(r, dtype).to_dense() for r in range(size))
    for op, result in ((hvd.Sum, want), (hvd.Average, want / size)):
        finish = hvd.sparse_allreduce_async(of_rank(rank, dtype), "sparse", op)
        assert callable(finish)
        got = finish()
        assert got.is_sparse
        assert got.is_coalesced()
        same(got.to_dense(), result, op)
    two = torch.sparse_coo_tensor(torch.tensor([[rank, rank], [0, 1]]), torch.tensor([1.0, 2.0]), (size, 2))
    got = hvd.sparse_allreduce_async(two, "two", hvd.Sum)()
    assert got.sparse_dim() == 2
    same(got.to_dense(), torch.tensor([[1.0, 2.0]] * size))
    raises(ValueError, "use Average or Sum", hvd.sparse_allreduce_async, two, "max", hvd.Max)
    raises(TypeError, "missing", hvd.sparse_allreduce_async, two)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_sums(ranks: RankPool, dtype: str) -> None:
    ranks.run(summed, dtype)


def in_a_set() -> None:
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    members = hvd.add_process_set(list(range(1, size)))
    if rank:
        want = sum(of_rank(r).to_dense() for r in range(1, size)) / (size - 1)
        same(hvd.sparse_allreduce_async(of_rank(rank), "some", hvd.Average, members)().to_dense(), want)
    hvd.barrier()


def test_process_set(ranks: RankPool) -> None:
    if ranks.np > 1:
        ranks.run(in_a_set)


def tables(number: int = 1) -> object:
    made = torch.nn.ModuleList([torch.nn.Embedding(6, 2, sparse=True, dtype=torch.float64) for _ in range(number)])
    with torch.no_grad():
        for table in made:
            table.weight.zero_()
    return made


def first_round() -> None:
    """In the first step only the last rank's graph reaches the second table, and later only rank 0's the first."""
    rank, size = hvd.rank(), hvd.size()
    model = tables(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    loss = model[0](torch.tensor([rank, 5])).sum()
    if rank == size - 1:
        loss = loss + model[1](torch.tensor([2])).sum()
    loss.backward()
    optimizer.step()
    assert all(table.weight.grad.is_sparse for table in model)
    first, second = torch.zeros(6, 2, dtype=torch.float64), torch.zeros(6, 2, dtype=torch.float64)
    first[:size] -= 1.0 / size
    first[5] -= 1.0
    second[2] -= 1.0 / size
    same(model[0].weight.detach(), first)
    same(model[1].weight.detach(), second)
    optimizer.zero_grad(set_to_none=rank % 2 == 0)
    if rank == 0:
        model[0](torch.tensor([3])).sum().backward()
    optimizer.step()
    first[3] -= 1.0 / size
    torch.testing.assert_close(model[0].weight.detach(), first, rtol=1e-15, atol=1e-15)
    same(model[1].weight.detach(), second)


def test_graphs_that_differ(ranks: RankPool) -> None:
    ranks.run(first_round)


def mixed_kinds() -> None:
    """A gradient agreed on as dense stays dense, and the other way round, for every graph of one rank."""
    rank, size = hvd.rank(), hvd.size()
    table = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.float64))

    def lookup(row: int, sparse: bool) -> object:
        return torch.nn.functional.embedding(torch.tensor([row]), table, sparse=sparse).sum()

    want = torch.zeros(4, 2, dtype=torch.float64)
    for begins_sparse in (False, True):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table], lr=1.0), [("table", table)])
        for sparse in (begins_sparse, (rank == 0) != begins_sparse):
            optimizer.zero_grad()
            lookup(rank, sparse).backward()
            optimizer.step()
            want[:size] -= 1.0 / size
            torch.testing.assert_close(table.detach(), want, rtol=1e-15, atol=1e-15)


def test_ranks_agree_on_the_kinds_of_gradients(ranks: RankPool) -> None:
    ranks.run(mixed_kinds)


def like_dense(kind: str) -> None:
    """Three steps over rows that differ from rank to rank: as one process with a dense gradient of the average."""
    rank, size = hvd.rank(), hvd.size()
    model, alone = tables()[0], torch.nn.Parameter(torch.zeros(6, 2, dtype=torch.float64))
    passes = 2 if kind == "passes" else 1
    made = torch.optim.SparseAdam if kind == "SparseAdam" else torch.optim.Adagrad
    options = {"sparse_as_dense": True} if kind == "dense" else {}
    optimizer = hvd.DistributedOptimizer(
        made(list(model.parameters()), lr=0.1), backward_passes_per_step=passes, **options
    )
    reference = made([alone], lr=0.1)
    factor = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(6, 2)
    for step in range(3):
        optimizer.zero_grad()
        whole = torch.zeros(6, 2, dtype=torch.float64)
        for number in range(passes):
            rows = {r: torch.tensor([r, (r + step + number) % 6, 5]) for r in range(size)}
            (model(rows[rank]) * factor[rows[rank]]).sum().backward()
            for r in range(size):
                whole.index_add_(0, rows[r], factor[rows[r]] / size)
        optimizer.step()
        alone.grad = whole.to_sparse(1)
        reference.step()
    assert model.weight.grad.is_sparse
    torch.testing.assert_close(model.weight.detach(), alone.detach(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", ["sparse", "dense", "passes", "SparseAdam"])
def test_optimizers(ranks: RankPool, kind: str) -> None:
    ranks.run(like_dense, kind)


def grouped() -> None:
    """A sparse gradient does not travel in a group."""
    if hvd.size() > 1:
        model = tables(2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), groups=1)
        raises(ValueError, "sparse_as_dense=True", model[0](torch.tensor([hvd.rank() % 4])).sum().backward)
        del optimizer


def test_sparse_gradients_in_a_group_are_refused(ranks: RankPool) -> None:
    ranks.run(grouped)


def joined_in_the_first_round() -> None:
    """A rank that joins before any agreement: dense gradients are reduced, and agreed on later."""
    rank, size = hvd.rank(), hvd.size()
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])
    if rank:
        weight.sum().backward()
        optimizer.step()
        same(weight.detach(), torch.full((2,), -(size - 1) / size))
    hvd.join()
    optimizer.zero_grad()
    before = weight.detach().clone()
    weight.sum().backward()
    optimizer.step()
    same(weight.detach(), before - 1.0)


def test_join_in_the_first_round(ranks: RankPool) -> None:
    ranks.run(joined_in_the_first_round)
