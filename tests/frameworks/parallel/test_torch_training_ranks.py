"""What a training script uses, in the process that is the rank: derivatives, process sets, states, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hvdtest.exact import raises, same
from hvdtest.gradients import batch, close, local_gradients, mean, model_of

import hvd_kernel.torch as hvd


def init() -> tuple[int, int]:
    hvd.init()
    return hvd.rank(), hvd.size()


def weighted(y: torch.Tensor) -> None:
    """Walk back with the weight rank + 1, by which every rank's part shows in the others' derivatives."""
    (y * (hvd.rank() + 1)).sum().backward()


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64, requires_grad=True)


def full(shape: tuple[int, ...], value: float) -> torch.Tensor:
    return torch.full(shape, float(value), dtype=torch.float64)


# Derivatives.


@pytest.mark.parametrize("shape", [(17,), (5, 7), (3, 4, 5)], ids=len)
def test_through_allreduce(shape: tuple[int, ...]) -> None:
    _, size = init()
    whole = size * (size + 1) / 2
    for op, want in ((hvd.Sum, whole), (hvd.Average, whole / size)):
        x = ones(*shape)
        weighted(hvd.allreduce(x, op=op))
        same(x.grad, full(shape, want), op)


def test_through_factors() -> None:
    _, size = init()
    x = ones(4)
    hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).sum().backward()
    same(x.grad, full((4,), size * 0.5))


def test_through_a_group() -> None:
    _, size = init()
    xs = [ones(n) for n in (1, 2, 3)]
    weighted(torch.cat([y * (i + 1) for i, y in enumerate(hvd.grouped_allreduce(xs, op=hvd.Sum))]))
    for i, x in enumerate(xs):
        same(x.grad, full((i + 1,), (i + 1) * size * (size + 1) / 2))


def test_through_allgather() -> None:
    rank, size = init()
    x = ones(rank + 1, 2)
    y = hvd.allgather(x)
    weighted(y * torch.arange(len(y)).double()[:, None])
    begin = rank * (rank + 1) // 2
    want = torch.arange(begin, begin + rank + 1).double() * (size + 1) / 2
    same(x.grad, want[:, None].repeat(1, 2))


def test_through_broadcast() -> None:
    rank, size = init()
    for root in range(size):
        x = ones(3)
        weighted(hvd.broadcast(x, root))
        same(x.grad, full((3,), (size + 1) / 2 if rank == root else 0.0), root)


def test_through_alltoall() -> None:
    _, size = init()
    x = ones(2 * size, 3)
    weighted(hvd.alltoall(x))
    same(x.grad, torch.arange(1.0, size + 1).double().repeat_interleave(2)[:, None].repeat(1, 3))


def test_through_reducescatter() -> None:
    _, size = init()
    owner = torch.arange(size).repeat_interleave(2).double() + 1
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = ones(2 * size, 3)
        weighted(hvd.reducescatter(x, op=op))
        same(x.grad, (owner * factor)[:, None].repeat(1, 3), op)


def test_without_gradients() -> None:
    init()
    with torch.no_grad():
        assert not hvd.allreduce(ones(2)).requires_grad


# Process sets.


@pytest.fixture
def head() -> Iterator[hvd.ProcessSet]:
    """All ranks but the last; alone the set of all."""
    _, size = init()
    found = hvd.add_process_set(range(size - 1)) if size > 1 else hvd.global_process_set
    yield found
    if size > 1:
        assert hvd.remove_process_set(found)


def test_a_set_knows_its_members(head: hvd.ProcessSet) -> None:
    rank, size = init()
    count = max(1, size - 1)
    assert (head.size(), head.included()) == (count, rank < count)
    if head.included():
        assert head.rank() == rank
    else:
        raises(ValueError, "Process is not part of provided process set.", head.rank)


def test_operations_in_a_set(head: hvd.ProcessSet) -> None:
    rank, _ = init()
    if not head.included():
        text = f"Rank {rank} is not a member of the provided process set."
        raises(ValueError, text, hvd.allreduce, torch.ones(1), process_set=head)
        return
    count = head.size()
    x = torch.full((3,), rank + 1)
    same(hvd.allreduce(x, op=hvd.Sum, process_set=head), torch.full((3,), count * (count + 1) // 2))
    same(hvd.allgather(x[:1], process_set=head), torch.arange(1, count + 1))
    same(hvd.broadcast(x, count - 1, process_set=head), torch.full((3,), count))
    same(hvd.alltoall(torch.full((count,), rank), process_set=head), torch.arange(count))
    same(hvd.reducescatter(torch.arange(count), op=hvd.Sum, process_set=head), torch.tensor([rank * count]))
    assert hvd.broadcast_object(rank, 0, process_set=head) == 0


def test_sets_side_by_side(head: hvd.ProcessSet) -> None:
    """An operation of all ranks and one of a set under the same name do not meet."""
    rank, size = init()
    everyone = hvd.allreduce_async(torch.tensor([rank + 1]), name="x", op=hvd.Sum)
    if head.included() and size > 1:
        few = hvd.allreduce_async(torch.tensor([1]), name="x", op=hvd.Sum, process_set=head)
        same(hvd.synchronize(few), torch.tensor([size - 1]))
    same(hvd.synchronize(everyone), torch.tensor([size * (size + 1) // 2]))


def test_sets_that_cannot_be() -> None:
    _, size = init()
    raises(ValueError, "Attempted to add a duplicate process set", hvd.add_process_set, range(size))
    raises(ValueError, f"invalid rank: {size}", hvd.add_process_set, [0, size])


# States.


def test_parameters_come_from_the_root() -> None:
    _, size = init()
    for root in range(size):
        model = model_of(seed=hvd.rank())
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        for (name, got), want in zip(model.named_parameters(), model_of(seed=root).parameters(), strict=True):
            same(got.detach(), want.detach(), (root, name))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_an_optimizers_state_comes_from_the_root(kind: str) -> None:
    rank, size = init()
    root = size - 1

    def trained(seed: int) -> torch.optim.Optimizer:
        options = {"momentum": 0.9} if kind != "Adam" else {}
        optimizer = getattr(torch.optim, kind)((model := model_of()).parameters(), lr=0.125 * (seed + 1), **options)
        model(batch(seed)).square().sum().backward()
        optimizer.step()
        return optimizer

    mine, wanted = trained(rank), trained(root).state_dict()
    hvd.broadcast_optimizer_state(mine, root_rank=root)
    got = mine.state_dict()
    assert got["param_groups"] == wanted["param_groups"]
    for number, state in wanted["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(got["state"][number][name], value, rtol=0, atol=0)


# The optimizer.


@pytest.mark.parametrize("kind", ["plain", "named", "groups", "predivide", "sum"])
def test_gradients_are_those_of_all_ranks(kind: str) -> None:
    rank, size = init()
    model = model_of()
    named = {"named_parameters": model.named_parameters()}
    options = {
        "plain": {},
        "named": named,
        "groups": named | {"groups": 2},
        "predivide": {"gradient_predivide_factor": 2.0},
        "sum": {"op": hvd.Sum},
    }[kind]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.25), **options)
    wanted = mean([local_gradients(r) for r in range(size)])
    for _ in range(2):
        optimizer.zero_grad()
        model(batch(rank)).square().sum().backward()
        optimizer.synchronize()
        for p, want in zip(model.parameters(), wanted, strict=True):
            close(p.grad, want * (size if kind == "sum" else 1), kind)


def test_one_step_for_two_passes() -> None:
    rank, size = init()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.25), backward_passes_per_step=2)
    for number in range(2):
        model(batch(rank, number)).square().sum().backward()
    optimizer.synchronize()
    for p, want in zip(model.parameters(), mean([local_gradients(r, passes=2) for r in range(size)]), strict=True):
        close(p.grad, want)


def test_ranks_stay_equal_while_they_train() -> None:
    rank, size = init()
    model = model_of(seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(batch(rank, step % 2)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    assert losses[4] < losses[0]
    for p in model.parameters():
        everywhere = hvd.allgather(p.detach()[None])
        for r in range(size):
            same(everywhere[r], p.detach(), r)


def test_batch_statistics_are_those_of_all_ranks() -> None:
    _, size = init()
    layer = hvd.SyncBatchNorm(3, dtype=torch.float64)
    parts = [batch(r) for r in range(size)]
    got = layer(parts[hvd.rank()])
    want = torch.nn.functional.batch_norm(torch.cat(parts), None, None, training=True).split(5)[hvd.rank()]
    torch.testing.assert_close(got.detach(), want, rtol=1e-12, atol=1e-12)


def test_sparse_gradients_add_up() -> None:
    rank, size = init()
    mine = torch.sparse_coo_tensor(
        torch.tensor([[rank, size]]), torch.tensor([1.0, 2.0]), (size + 1,), check_invariants=True
    )
    got = hvd.sparse_allreduce_async(mine, "sparse", hvd.Sum)().to_dense()
    same(got, torch.tensor([1.0] * size + [2.0 * size]))


def test_all_of_it_works_again_after_shutdown() -> None:
    before = init()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
        hvd.rank()
    assert init() == before
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
