"""Needs of a training script in the process of the rank: equal parameters, shutdown."""

from __future__ import annotations

import pytest
import torch
from hvdtest.exact import same
from hvdtest.gradients import batch, model_of

import hvd_kernel.torch as hvd


def init() -> tuple[int, int]:
    hvd.init()
    return hvd.rank(), hvd.size()


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


def test_all_operations_work_after_shutdown_and_init() -> None:
    before = init()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
        hvd.rank()
    assert init() == before
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
