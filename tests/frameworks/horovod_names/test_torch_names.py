"""Names of horovod.torch that only its module mpi_ops and its optimizers have, on real ranks."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


def by_horovods_functions() -> None:
    import torch
    from hvdtest.exact import same

    from hvd_kernel import compat

    compat.install()
    import horovod.torch as hvd
    from horovod.torch import mpi_ops
    from horovod.torch.mpi_ops import HorovodAllreduce, HorovodGroupedAllreduce

    rank, size, world = hvd.rank(), hvd.size(), hvd.global_process_set
    whole = size * (size + 1) / 2
    mine = torch.full((2 * size,), rank + 1.0, requires_grad=True)
    summed = HorovodAllreduce.apply(mine, None, "sum", hvd.Sum, 2.0, 0.5, world)
    same(summed, torch.full((2 * size,), whole))
    (summed * (rank + 1)).sum().backward()
    same(mine.grad, torch.full((2 * size,), whole))
    with pytest.warns(DeprecationWarning, match="`average` has been replaced"):
        same(HorovodAllreduce.apply(mine, False, None, None, 1.0, 1.0, world), torch.full((2 * size,), whole))
    pair = HorovodGroupedAllreduce.apply(None, "pair", hvd.Max, 1.0, 1.0, world, mine, mine * 2)
    same(pair[0], torch.full((2 * size,), float(size)))
    same(pair[1], torch.full((2 * size,), 2.0 * size))
    rows = mpi_ops.HorovodReducescatter.apply(mine, "rows", hvd.Average, world, 1.0, 1.0)
    same(rows, torch.full((2,), whole / size))
    both = mpi_ops.HorovodGroupedReducescatter.apply("both", hvd.Sum, world, 1.0, 2.0, mine, mine)
    assert [each.tolist() for each in both] == [[2 * whole] * 2] * 2
    assert mpi_ops.HorovodAllgather.apply(mine[:1], "all", world).tolist() == [r + 1.0 for r in range(size)]
    assert mpi_ops.HorovodBroadcast.apply(mine, size - 1, "root", world).tolist() == [float(size)] * 2 * size
    back, counts = mpi_ops.HorovodAlltoall.apply(mine, None, "turn", world)
    assert back.tolist() == [r + 1.0 for r in range(size) for _ in range(2)]
    assert counts.tolist() == [2] * size
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average

    basics = mpi_ops._basics
    assert (basics.rank(), basics.size(), basics.Sum) == (rank, size, hvd.Sum)
    handle = hvd.allreduce_async(mine.detach(), name="handle")
    assert handle in mpi_ops._handle_map
    hvd.synchronize(handle)
    assert handle not in mpi_ops._handle_map
    compat.uninstall()


def test_functions_of_autograd_and_the_core(ranks: RankPool) -> None:
    ranks.run(by_horovods_functions)


def wrapped() -> None:
    import torch

    from hvd_kernel import compat

    compat.install()
    import horovod.torch as hvd
    from horovod.common.process_sets import get_process_set_ids_and_ranks
    from horovod.torch.optimizer import _DistributedAdasumOptimizer, _DistributedOptimizer

    def made(op: int) -> torch.optim.Optimizer:
        model = torch.nn.Linear(2, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        assert not isinstance(plain, _DistributedOptimizer | _DistributedAdasumOptimizer)
        return hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), op=op)

    alone = hvd.size() == 1
    average, adasum = made(hvd.Average), made(hvd.Adasum)
    assert isinstance(average, _DistributedOptimizer)
    assert issubclass(type(average), _DistributedOptimizer)
    assert not isinstance(average, _DistributedAdasumOptimizer)
    assert isinstance(adasum, _DistributedOptimizer if alone else _DistributedAdasumOptimizer)
    assert get_process_set_ids_and_ranks()[0] == list(range(hvd.size()))
    compat.uninstall()


def test_wrapped_optimizer_has_one_of_horovods_two_classes(ranks: RankPool) -> None:
    ranks.run(wrapped)
