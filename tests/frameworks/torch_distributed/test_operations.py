"""Exact values of what Gloo lacks or gets wrong: averages, scaled sums, bool, complex, small floats, uneven sizes, gaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import world

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), nightly=((3, "tcp"), (4, "shm"), *TORCH_VERSIONS))

CHECKS: dict[str, Callable[..., None]] = {}


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Add a function of (dist, rank, size) to the table."""
    CHECKS[function.__name__] = function
    return function


@check
def averages(dist: Any, rank: int, size: int) -> None:
    mean = torch.full((3,), float(2 * rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    same(mean, torch.full((3,), float(size - 1)))
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.full((2 * size,), float(2 * rank)), dist.ReduceOp.AVG)
    same(part, torch.full((2,), float(size - 1)))


@check
def scaled_sums(dist: Any, rank: int, size: int) -> None:
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    for factor in (0.5, torch.tensor([0.5])):
        tensor = torch.full((4,), float(rank + 1))
        dist.all_reduce(tensor, _make_nccl_premul_sum(factor))
        same(tensor, torch.full((4,), size * (size + 1) / 4))


@check
def bools(dist: Any, rank: int, size: int) -> None:
    operations = dist.ReduceOp
    first = torch.tensor([rank == 0, True, False])
    either, both = torch.tensor([True, True, False]), torch.tensor([size == 1, True, False])
    for operation, want in (
        (operations.SUM, either),
        (operations.MAX, either),
        (operations.BOR, either),
        (operations.PRODUCT, both),
        (operations.MIN, both),
        (operations.BAND, both),
    ):
        tensor = first.clone()
        dist.all_reduce(tensor, operation)
        same(tensor, want, operation)


@check
def complex_numbers(dist: Any, rank: int, size: int) -> None:
    gathered = [torch.empty(2, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(gathered, torch.tensor([complex(rank, -1), -2j]))
    for number, tensor in enumerate(gathered):
        same(tensor, torch.tensor([complex(number, -1), -2j]))
    product = torch.tensor([2j], dtype=torch.complex128)
    dist.group.WORLD.allreduce([product], dist.ReduceOp.PRODUCT).wait()
    same(product, torch.tensor([(2j) ** size], dtype=torch.complex128))


@check
def types_that_the_core_only_moves(dist: Any, rank: int, size: int) -> None:
    total = sum(range(1, size + 1))
    for name in ("float8_e4m3fn", "float8_e5m2", "uint32"):
        kind = getattr(torch, name)
        tensor = torch.tensor([float(rank + 1)] * 3).to(kind)
        dist.all_reduce(tensor)
        same(tensor.to(torch.float32), torch.full((3,), float(total)), name)
        tensor = torch.tensor([float(rank)] * 3).to(kind)
        dist.broadcast(tensor, src=size - 1)
        same(tensor.to(torch.float32), torch.full((3,), size - 1.0), name)
        part = torch.empty(1).to(kind)
        dist.reduce_scatter_tensor(part, torch.tensor([float(rank + 1)] * size).to(kind))
        same(part.to(torch.float32), torch.tensor([float(total)]), name)


@check
def uneven_sizes(dist: Any, rank: int, size: int) -> None:
    gathered = [torch.empty(number + 1, 2) for number in range(size)]
    dist.all_gather(gathered, torch.full((rank + 1, 2), float(rank)))
    for number, tensor in enumerate(gathered):
        same(tensor, torch.full((number + 1, 2), float(number)))
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((number + 1,), number + rank + 0.0) for number in range(size)])
    same(output, torch.full((rank + 1,), float(size * rank + sum(range(size)))))
    received = [torch.empty(number + 1) for number in range(size)]
    dist.all_to_all(received, [torch.full((rank + 1,), 10.0 * rank + number) for number in range(size)])
    for number, tensor in enumerate(received):
        same(tensor, torch.full((number + 1,), 10.0 * number + rank))
    parts = [torch.empty(number, dtype=torch.int64) for number in range(size)]
    dist.gather(torch.full((rank,), rank), parts if rank == 0 else None, dst=0)
    assert rank or [part.tolist() for part in parts] == [[number] * number for number in range(size)]


@check
def gaps_in_memory(dist: Any, rank: int, size: int) -> None:
    whole = torch.zeros(4, 6)
    whole[:, ::2] = rank + 1
    dist.all_reduce(whole[:, ::2])
    same(whole, torch.tensor([[size * (size + 1) / 2, 0.0] * 3] * 4))
    output = torch.zeros(2 * size, 2)
    dist.all_gather_into_tensor(output[:, 0], torch.full((2,), rank + 1.0))
    same(output[:, 0], torch.arange(1.0, size + 1).repeat_interleave(2))
    same(output[:, 1], torch.zeros(2 * size))


@check
def one_tensor_twice(dist: Any, rank: int, size: int) -> None:
    """Both are sums of what was there before, and the second of them stays."""
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce_coalesced([tensor, tensor])
    same(tensor, torch.full((3,), size * (size + 1) / 2))


@check
def stacked(dist: Any, rank: int, size: int) -> None:
    output = torch.empty(size, 2, 3)
    dist.all_gather_into_tensor(output, torch.full((2, 3), float(rank)))
    same(output, torch.arange(float(size)).reshape(size, 1, 1).expand(size, 2, 3).contiguous())


@check
def coalescing_manager(dist: Any, rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    device = torch.device("cpu")
    tensors = [torch.full((count,), rank + 1.0) for count in (1, 4)]
    with _coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    same(torch.cat(tensors), torch.full((5,), size * (size + 1) / 2))
    outputs, parts = [torch.empty(size), torch.empty(2 * size)], [torch.empty(1), torch.empty(2)]
    with _coalescing_manager(device=device):
        for output, count in zip(outputs, (1, 2), strict=True):
            dist.all_gather_into_tensor(output, torch.full((count,), float(rank)))
    same(outputs[1], torch.arange(float(size)).repeat_interleave(2))
    with _coalescing_manager(device=device):
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.full((size * part.numel(),), rank + 1.0))
    same(torch.cat(parts), torch.full((3,), size * (size + 1) / 2))


@check
def groups_own_methods(dist: Any, rank: int, size: int) -> None:
    """The short forms, and the names of before torch 2.13."""
    group, total = dist.group.WORLD, size * (size + 1) / 2
    tensor = torch.tensor([rank + 1.0])
    assert group.allreduce(tensor).wait()
    same(tensor, torch.tensor([total]))
    group.broadcast(torch.ones(1), 0).wait()
    output = torch.empty(size)
    group._allgather_base(output, torch.tensor([float(rank)])).wait()
    same(output, torch.arange(float(size)))
    part = torch.empty(1)
    group._reduce_scatter_base(part, torch.full((size,), rank + 1.0)).wait()
    same(part, torch.tensor([total]))
    group.alltoall_base(output, torch.full((size,), float(rank)), [], []).wait()
    same(output, torch.arange(float(size)))
    lists = [[torch.empty(1)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.tensor([float(rank)])]).wait()
    same(torch.cat([part for (part,) in lists]), torch.arange(float(size)))
    group.barrier().wait()


@check
def parts_that_are_missing(dist: Any, rank: int, size: int) -> None:
    from hvd_kernel.torch.distributed.process_group import NO_MONITORED_BARRIER

    raises(NotImplementedError, NO_MONITORED_BARRIER, dist.group.WORLD.monitored_barrier)


def checked(name: str, folder: str) -> bool:
    with world("hvd", folder) as dist:
        CHECKS[name](dist, hvd.rank(), hvd.size())
    return True


@pytest.mark.parametrize("name", list(CHECKS))
def test_values(ranks: RankPool, name: str, tmp_path: Path) -> None:
    assert ranks.run(checked, name, str(tmp_path)) == [True] * ranks.np
