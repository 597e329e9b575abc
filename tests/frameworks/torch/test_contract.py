"""Easily missed behaviour of programs written for Horovod: every optimizer class, copies, wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((1, "auto"), (3, "tcp")))


def classes() -> list[Any]:
    """Every optimizer that this torch has."""
    from torch import optim

    found = [one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    return [one for one in found if one is not optim.Optimizer]


def weight(seed: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)))


def counted(rank: int, like: torch.Tensor) -> torch.Tensor:
    """A rank's gradient: whole numbers, so that their mean is exact."""
    return (torch.arange(12.0).reshape(4, 3) - 5).to(like.dtype) * (rank + 1)


def every_class() -> list[str]:
    """Each optimizer makes the steps of the plain one with the mean of the gradients, to the bit."""
    rank, size = hvd.rank(), hvd.size()
    for kind in classes():
        sparse = kind is torch.optim.SparseAdam
        mine, alone = weight(1), weight(1)
        plain = kind([alone], lr=0.125)
        optimizer = hvd.DistributedOptimizer(kind([mine], lr=0.125), named_parameters=[("mine", mine)])
        assert type(optimizer).__name__ == kind.__name__
        assert isinstance(optimizer, kind)

        def closure(mine: torch.Tensor = mine, optimizer: Any = optimizer, sparse: bool = sparse) -> torch.Tensor:
            optimizer.zero_grad()
            rows = torch.nn.functional.embedding(torch.arange(4), mine, sparse=sparse)
            loss = (rows * counted(rank, mine)).sum()
            loss.backward()
            return loss

        def whole(alone: torch.Tensor = alone, sparse: bool = sparse) -> torch.Tensor:
            means = sum(counted(r, alone) for r in range(size)) / size
            alone.grad = means.to_sparse(1) if sparse else means
            return (alone.detach() * means).sum()

        for _ in range(3):
            optimizer.step(closure)
            plain.step(whole)
        same(mine.detach(), alone.detach(), kind.__name__)
        optimizer.load_state_dict(plain.state_dict())
        plain.load_state_dict(optimizer.state_dict())
    return [kind.__name__ for kind in classes()]


def test_every_optimizer_class(ranks: RankPool) -> None:
    assert {"SGD", "Adam", "AdamW", "SparseAdam", "LBFGS", "Rprop", "ASGD"} <= set(ranks.run(every_class)[0])


def every_state(trained: bool) -> None:
    """The root's state and options arrive with their types, also if only the root has a state; parameters do not move."""
    rank, root = hvd.rank(), hvd.size() - 1

    def told(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), list(value.shape), value.tolist()]
        return [type(value).__name__, repr(value)]

    for kind in classes():
        if kind is torch.optim.LBFGS:
            continue
        params = [weight(rank), weight(rank + 1)]
        optimizer = kind([{"params": params[:1], "lr": 0.125 * (rank + 1)}, {"params": params[1:]}], lr=0.5 + rank)
        for step in range(rank + 1 if trained or rank == root else 0):
            for param in params:
                param.grad = counted(step, param)
                param.grad = param.grad.to_sparse(1) if kind is torch.optim.SparseAdam else param.grad
            optimizer.step()
        before = [param.detach().clone() for param in params]
        hvd.broadcast_optimizer_state(optimizer, root)
        found = [[name, told(value)] for param in params for name, value in optimizer.state[param].items()]
        for group in optimizer.param_groups:
            found += [[name, told(value)] for name, value in group.items() if name != "params"]
        assert found == hvd.broadcast_object(found, root), kind.__name__
        assert [group["lr"] for group in optimizer.param_groups] == [0.125 * (root + 1), 0.5 + root]
        for param, value in zip(params, before, strict=True):
            same(param.detach(), value, f"{kind.__name__}: a broadcast of state does not step")
        optimizer.step()
        fresh = weight(5)
        hvd.broadcast_optimizer_state(
            kind([fresh], lr=0.125, weight_decay=0.5) if kind is torch.optim.SGD else kind([fresh]), 0
        )
        same(fresh.detach(), weight(5).detach(), kind.__name__)


@pytest.mark.parametrize("trained", [True, False])
def test_state_of_every_optimizer_class(ranks: RankPool, trained: bool) -> None:
    ranks.run(every_state, trained)


def zero_gradients() -> None:
    """Horovod leaves zero gradients if there was no state; programs read them."""
    trained, frozen = weight(1), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, frozen], lr=1.0, momentum=0.9, weight_decay=0.5))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    same(trained.grad, torch.zeros(4, 3))
    same(hvd.broadcast(trained.grad, 0, name="zeros"), torch.zeros(4, 3))
    assert frozen.grad is None
    same(trained.detach(), weight(1).detach(), "without Horovod's step: no weight decay")
    trained.grad.add_(1.0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    same(trained.grad, torch.ones(4, 3), "what is there stays")
    optimizer.step()
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3, sparse=True), torch.nn.Linear(3, 1))
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=1.0), root_rank=0, model=model)
    assert [param.grad.is_sparse for param in model.parameters()] == [True, False, False]
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam([trained]), root_rank=0)
    rows = weight(2)
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam([rows]), root_rank=0)
    assert rows.grad.is_sparse
    assert rows.grad._nnz() == 0


def test_zero_gradients_after_the_broadcast_of_no_state(ranks: RankPool) -> None:
    ranks.run(zero_gradients)


def pending_at_join() -> None:
    """Operations that a rank has started before it joins still contain its part."""
    rank, size = hvd.rank(), hvd.size()
    started = hvd.allreduce_async(torch.ones(3), name="started", op=hvd.Sum) if rank == 0 else -1
    if rank == 0:
        hvd.join()
        same(hvd.synchronize(started), torch.full((3,), float(size)))
        return
    same(hvd.allreduce(torch.ones(3), name="started", op=hvd.Sum), torch.full((3,), float(size)))
    same(hvd.allreduce(torch.ones(3), name="later", op=hvd.Sum), torch.full((3,), size - 1.0))
    hvd.join()


def test_join_with_an_operation_in_flight(ranks: RankPool) -> None:
    ranks.run(pending_at_join)


def copied() -> None:
    """A copy is the plain optimizer with its state, and reports it: its steps are not reduced."""
    import copy
    import io
    import pickle
    import warnings

    import cloudpickle

    param = weight(1)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam([param], lr=0.5))
    param.sum().backward()
    optimizer.step()

    def saved(one: object) -> object:
        file = io.BytesIO()
        torch.save(one, file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    ways = (
        copy.deepcopy,
        lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: cloudpickle.loads(cloudpickle.dumps(one)),
        saved,
    )
    for way in ways:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            twin = way(optimizer)
        assert type(twin) is torch.optim.Adam
        assert [w.category for w in caught] == [UserWarning]
        assert "A copy of a DistributedOptimizer is a plain Adam" in str(caught[0].message)
        assert twin.param_groups[0]["lr"] == 0.5
        own = twin.param_groups[0]["params"][0]
        assert own is not param
        same(twin.state[own]["exp_avg"], optimizer.state[param]["exp_avg"])
        own.grad = torch.ones(4, 3)
        hvd.DistributedOptimizer(twin).step()
    same(param.grad, torch.ones(4, 3))


def test_copies_of_an_optimizer(ranks: RankPool) -> None:
    ranks.run(copied)


def wrong_things() -> None:
    """Non-tensors are refused by name, before anything is sent."""
    import numpy as np

    calls = {
        "allreduce": hvd.allreduce,
        "allreduce_": hvd.allreduce_,
        "allreduce_async": hvd.allreduce_async,
        "allgather": hvd.allgather,
        "alltoall": hvd.alltoall,
        "reducescatter": hvd.reducescatter,
        "broadcast": lambda thing: hvd.broadcast(thing, 0),
        "broadcast_": lambda thing: hvd.broadcast_(thing, 0),
        "grouped_allreduce": lambda thing: hvd.grouped_allreduce([torch.ones(1), thing]),
        "grouped_allgather": lambda thing: hvd.grouped_allgather([torch.ones(1), thing]),
        "grouped_reducescatter": lambda thing: hvd.grouped_reducescatter([torch.ones(1), thing]),
    }
    for call in calls.values():
        for thing, name in ((np.ones(2), "ndarray"), ([1.0], "list"), (None, "NoneType"), (1.5, "float")):
            raises(TypeError, f"{name} is not a torch.Tensor", call, thing)
    dense = torch.eye(2)
    kinds = {
        "kind torch.sparse_csr is not supported. Use its to_dense()": dense.to_sparse_csr(),
        "kind torch.sparse_bsr is not supported. Use its to_dense()": dense.to_sparse_bsr((1, 1)),
        "torch.sparse.FloatTensor is not supported. Use sparse_allreduce_async": dense.to_sparse(),
        "kind torch._mkldnn is not supported. Use its to_dense()": dense.to_mkldnn(),
        "kind nested is not supported. Use torch.nested.to_padded_tensor": torch.nested.nested_tensor([dense[0]]),
        "kind meta is not supported. It has no data": dense.to("meta"),
    }
    for call in calls.values():
        for text, tensor in kinds.items():
            raises(ValueError, text, call, tensor)
    raises(ValueError, "use its to_sparse_coo()", hvd.sparse_allreduce_async, dense.to_sparse_csr(), "x", hvd.Sum)
    text = "sparse_allreduce_async needs a sparse tensor, 'x' is torch.strided"
    raises(ValueError, text, hvd.sparse_allreduce_async, torch.ones(2), "x", hvd.Sum)
    same(hvd.allreduce(torch.ones(1), name="after"), torch.ones(1))


def test_non_tensor_arguments(ranks: RankPool) -> None:
    ranks.run(wrong_things)
