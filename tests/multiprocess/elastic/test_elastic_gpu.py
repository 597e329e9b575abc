"""Devices across resets: ranks meet again by other numbers and sizes. The driver of CUDA and that of the job are fakes.

Terms.
  plan  as in hvdtest/elastic_plans.py
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hvdtest import fake_cuda_driver, fake_gpu
from hvdtest.elastic_plans import Plan, generations, serve, workers
from hvdtest.fake_driver import FakeDriver
from hvdtest.gpu import WAYS
from hvdtest.launch import RankPool

pytestmark = [
    pytest.mark.mp,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not()),
]

PLAN: Plan = [{0: 0, 1: 1, 2: 2}, {2: 0, 1: 1}, {1: 0, 2: 1, 3: 2}, {3: 0}]
WARM_AFTER = 5


def on_devices(driver: FakeDriver, count: int, way: str) -> RankPool:
    return workers(driver, count, "auto", **WAYS[way], HVD_CUDA_DRIVER=str(fake_cuda_driver.driver()))


def follows(plan: list[dict[str, int]]) -> list[int]:
    """In each generation the devices' sums are its members'; results of before keep their values, operations raise.

    Returns how many pieces of others' memory are mapped in each.
    """
    import torch
    from hvdtest.exact import raises, same
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session
    from hvd_kernel.core.tensor import device_trouble

    fake_gpu.install()
    me = float(os.environ["WORKER"])
    weights = torch.nn.Parameter(there(torch.zeros(70_001)))
    optimizer: Any = None
    late: list[Any] = []
    kept: list[tuple[Any, torch.Tensor]] = []
    mapped = []
    for _, ranks in generations(plan):
        session.allow_collectives()
        assert device_trouble(0) == ""
        order = torch.tensor([float(worker) for worker, _ in sorted(ranks.items(), key=lambda item: item[1])])
        for handle in late:
            raises(hvd.HorovodInternalError, "Horovod has been shut down", hvd.synchronize, handle)
        for _ in range(3):  # the third time the response cache answers
            total = hvd.allreduce(there(torch.full((100_000,), me)), name="x", op=hvd.Sum)
            same(here(total), order.sum().repeat(100_000))
        gathered = hvd.allgather(there(torch.tensor([me])), name="y")
        same(here(gathered), order)
        same(here(hvd.broadcast(there(torch.tensor([me])), hvd.size() - 1, name="z")), order[-1:])
        for made, values in kept:
            same(here(made), values)
        kept.append((gathered, order))
        optimizer = optimizer or hvd.DistributedOptimizer(
            torch.optim.SGD([weights], lr=1.0), named_parameters=[("w", weights)], op=hvd.Sum
        )
        for _ in range(3):
            weights.grad = there(torch.full((70_001,), me))
            optimizer.synchronize()
            same(here(weights.grad), order.sum().repeat(70_001))
        mapped.append(fake_gpu.counts()["mappings"])
        hvd.barrier()
        late = [hvd.allreduce_async(there(torch.ones(1)), name="late")] if hvd.rank() == 0 and hvd.size() > 1 else []
    hvd.shutdown()
    return mapped


@pytest.mark.parametrize("way", ["ring", "core"])
def test_devices_follow_ranks_over_resets(way: str) -> None:
    with FakeDriver() as driver, on_devices(driver, 4, way) as pool:
        _, mapped = serve(driver, pool, PLAN, follows, PLAN)
    others = [[len(ranks) - 1 for ranks in PLAN if worker in ranks] for worker in range(4)]
    of_each = {"ring": 2, "core": 0}[way]  # of another rank: its part of the ring, and its gradients
    assert mapped == [[of_each * other for other in each] for each in others]


def resets_over_and_over(count: int) -> dict[str, Any]:
    """Return the usage of this rank's device before and after; ranks are renumbered each time."""
    import torch
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import process_sets
    from hvd_kernel.core.shared_memory import allocate_on_devices

    fake_gpu.install()
    x = there(torch.ones(1000))
    before: dict[str, int] = {}

    def work(most: dict[str, int]) -> dict[str, int]:
        region = allocate_on_devices(4096, 0)
        total = here(hvd.allreduce(x, name="x", op=hvd.Sum))
        assert total.unique().tolist() == [hvd.size()]
        found = fake_gpu.settled(most)
        del region
        return found

    hvd.init()
    for number in range(count):
        warms = number <= WARM_AFTER
        found = work(before if warms else {})
        before = found if warms else before
        process_sets.reset_communicator()
    after = work(before)
    hvd.barrier()
    hvd.shutdown()
    return {"before": before, "after": after, "under others": fake_gpu.turn("fake_cuda_freed_under_others")}


def test_resets_leak_nothing_on_devices() -> None:
    count = 40
    plan = [{0: number % 2, 1: 1 - number % 2} for number in range(count + 1)]
    with FakeDriver() as driver, on_devices(driver, 2, "ring") as pool:
        _, found = serve(driver, pool, plan, resets_over_and_over, count, timeout=600)
    for one in found:
        assert one["before"] == one["after"], one
        assert one["under others"] == 0
