"""The same program on our backend and on Gloo: outputs are equal to the bit, on every rank.

Values are whole numbers, or two ranks reduce them, so that no order of additions changes a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import bits, is_before, on_both

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), nightly=((3, "tcp"), (4, "shm"), *TORCH_VERSIONS))

PROGRAMS: dict[str, Callable[..., Any]] = {}
SINCE = {"scattered_sums": (2, 5), "compiled": (2, 5)}  # torch 2.4: not on Gloo; functional collectives need a group


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function of (dist, rank, size) to the table; it returns its outputs."""
    PROGRAMS[function.__name__] = function
    return function


def whole(rank: int, *shape: int, dtype: str = "float32") -> Any:
    """Whole numbers that differ by rank."""
    import torch

    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count).reshape(shape) % 5 + rank + 1).to(getattr(torch, dtype))


@program
def sums_of_types(dist: Any, rank: int, size: int) -> Any:
    names = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    tensors = [whole(rank, 3, 4, dtype=name) for name in names]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@program
def reductions(dist: Any, rank: int, size: int) -> Any:
    outputs = []
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        for dtype in ("int64", "uint8", *([] if name.startswith("B") else ["float32", "float64"])):
            outputs.append(whole(rank, 7, dtype=dtype))
            dist.all_reduce(outputs[-1], getattr(dist.ReduceOp, name))
    return outputs


@program
def random_floats(dist: Any, rank: int, size: int) -> Any:
    """Two ranks: one addition per element, in either order."""
    import torch

    if size > 2:
        return []
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(1001, generator=generator, dtype=getattr(torch, name)) for name in ("float32", "float64")]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@program
def complex_sum(dist: Any, rank: int, size: int) -> Any:
    import torch

    tensor = torch.complex(whole(rank, 5), -whole(rank, 5))
    dist.all_reduce(tensor)
    return tensor


@program
def shapes(dist: Any, rank: int, size: int) -> Any:
    """No dimension, no element, columns first, and a tensor that autograd records. (Gloo overlooks gaps in memory.)"""
    import torch

    tensors = [whole(rank), torch.empty(0), whole(rank, 3, 5).t(), whole(rank, 2).requires_grad_()]
    for tensor in tensors:
        dist.all_reduce(tensor.detach())
    return tensors


@program
def coalesced_sum(dist: Any, rank: int, size: int) -> Any:
    tensors = [whole(rank, count) for count in (3, 1, 8)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@program
def broadcasts(dist: Any, rank: int, size: int) -> Any:
    import torch

    outputs = [whole(rank, 4, dtype=name) for name in ("float32", "bool", "int8", "float16")]
    outputs.append(whole(rank, 4, 4).t())
    outputs.append(torch.tensor(float(rank)))
    for number, output in enumerate(outputs):
        dist.broadcast(output, src=number % size)
    return outputs


@program
def reduces(dist: Any, rank: int, size: int) -> Any:
    outputs = []
    for root in range(size):
        tensor = whole(rank, 6)
        dist.reduce(tensor, dst=root)
        if rank == root:
            outputs.append(tensor)
    return outputs


@program
def gathered_lists(dist: Any, rank: int, size: int) -> Any:
    import torch

    equal = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(equal, whole(rank, 2, 3))
    flags = [torch.zeros(3, dtype=torch.bool) for _ in range(size)]
    dist.all_gather(flags, torch.tensor([rank == 0, True, False]))
    return equal, flags


@program
def gathered_into_one(dist: Any, rank: int, size: int) -> Any:
    import torch

    rows, scalars = torch.empty(2 * size, 3), torch.empty(size, dtype=torch.int64)
    dist.all_gather_into_tensor(rows, whole(rank, 2, 3))
    dist.all_gather_into_tensor(scalars, whole(rank, 1, dtype="int64"))
    return rows, scalars


@program
def gathers_and_scatters(dist: Any, rank: int, size: int) -> Any:
    import torch

    outputs = []
    for root in range(size):
        parts = [torch.empty(3) for _ in range(size)] if rank == root else None
        dist.gather(whole(rank, 3), parts, dst=root)
        received = torch.empty(2, dtype=torch.int32)
        pieces = [whole(number, 2, dtype="int32") for number in range(size)] if rank == root else None
        dist.scatter(received, pieces, src=root)
        outputs.append([parts, received])
    return outputs


@program
def scattered_sums(dist: Any, rank: int, size: int) -> Any:
    import torch

    one, several, biggest = torch.empty(2, 3), torch.empty(4), torch.empty(4)
    dist.reduce_scatter_tensor(one, whole(rank, 2 * size, 3))
    dist.reduce_scatter(several, [whole(rank + number, 4) for number in range(size)])
    dist.reduce_scatter(biggest, [whole(rank + number, 4) for number in range(size)], dist.ReduceOp.MAX)
    return one, several, biggest


@program
def exchanges(dist: Any, rank: int, size: int) -> Any:
    import torch

    equal, uneven = torch.empty(2 * size), torch.empty(sum(rank + 1 for _ in range(size)), 2)
    dist.all_to_all_single(equal, whole(rank, 2 * size))
    sent = [number + 1 for number in range(size)]
    dist.all_to_all_single(uneven, whole(rank, sum(sent), 2), [rank + 1] * size, sent)
    return equal, uneven


@program
def objects(dist: Any, rank: int, size: int) -> Any:
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    first: list[Any] = [f"rank {rank}", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(first, src=0)
    at_root: list[Any] = [None] * size
    dist.gather_object(rank, at_root if rank == 0 else None, dst=0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [[number] for number in range(size)] if rank == 0 else None, src=0)
    return everything, first, at_root, mine


@program
def functional(dist: Any, rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functions

    group = dist.group.WORLD
    return [
        functions.all_reduce(whole(rank, 4), "sum", group).clone(),
        functions.all_gather_tensor(whole(rank, 2, 2), 0, group).clone(),
        functions.reduce_scatter_tensor(whole(rank, 2 * size), "sum", 0, group).clone(),
        functions.all_to_all_single(whole(rank, size), None, None, group).clone(),
        functions.broadcast(whole(rank, 3), size - 1, group).clone(),
        *[part.clone() for part in functions.all_reduce_coalesced([whole(rank, 2), whole(rank, 5)], "sum", group)],
        *[part.clone() for part in functions.all_gather_into_tensor_coalesced([whole(rank, 2)], group)],
        *[part.clone() for part in functions.reduce_scatter_tensor_coalesced([whole(rank, size)], "sum", [0], group)],
    ]


@program
def asynchronous(dist: Any, rank: int, size: int) -> Any:
    tensors = [whole(rank, 3, dtype="int64") * number for number in range(300)]  # more than there are names
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works[::-1]:
        work.wait()
    return tensors


@program
def subgroups(dist: Any, rank: int, size: int) -> Any:
    outputs = []
    for members in ([0], [size - 1, 0], [*range(size)]):
        group = dist.new_group(members)
        tensor = whole(rank, 3)
        if rank in members:
            dist.all_reduce(tensor, group=group)
            outputs.append([dist.get_group_rank(group, rank), dist.get_process_group_ranks(group)])
            dist.destroy_process_group(group)
        outputs.append(tensor)
    return outputs


@program
def messages_in_a_ring(dist: Any, rank: int, size: int) -> Any:
    outputs = []
    for dtype in ("float32", "int64", "bool", "bfloat16", "complex64"):
        received = whole(0, 3, 2, dtype=dtype)
        works = [dist.isend(whole(rank, 3, 2, dtype=dtype), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
        for work in works:
            work.wait()
        outputs.append(received)
    return outputs


@program
def blocking_messages(dist: Any, rank: int, size: int) -> Any:
    tensor = whole(rank, 100)
    for number in range(20):
        source, destination = number % size, (number + 1) % size
        if rank == source:
            dist.send(tensor, destination, tag=number % 3)
        if rank == destination:
            assert dist.recv(tensor, source, tag=number % 3) == source
            tensor += 1
        dist.all_reduce(whole(rank, 2))
    return tensor


@program
def tags_out_of_order(dist: Any, rank: int, size: int) -> Any:
    outputs = [whole(0, 4) * 0 for _ in range(4)]
    if rank == 0:
        works = [dist.isend(whole(number, 4), 1, tag=tag) for number, tag in enumerate((5, 6, 5, 7))]
    else:
        works = [dist.irecv(output, 0, tag=tag) for output, tag in zip(outputs, (7, 5, 6, 5), strict=True)]
    for work in works if rank < 2 else []:
        work.wait()
    return outputs


@program
def batched_messages(dist: Any, rank: int, size: int) -> Any:
    outputs = [whole(0, 2, 5), whole(0, 3)]
    operations = [
        dist.P2POp(dist.isend, whole(rank, 2, 5), (rank + 1) % size),
        dist.P2POp(dist.isend, whole(rank, 3), (rank + 1) % size),
        dist.P2POp(dist.irecv, outputs[0], (rank - 1) % size),
        dist.P2POp(dist.irecv, outputs[1], (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return outputs


@program
def message_into_gaps(dist: Any, rank: int, size: int) -> Any:
    table = whole(rank, 4, 4)
    if rank == 0:
        dist.send(whole(7, 4).contiguous(), 1)
    elif rank == 1:
        column = whole(0, 4)
        dist.recv(column, 0)
        table[:, 1] = column
    return table


@program
def objects_in_messages(dist: Any, rank: int, size: int) -> Any:
    objects: list[Any] = [None, None]
    if rank == 0:
        dist.send_object_list([{"rank": rank}, "text"], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
    return objects


@program
def messages_in_a_subgroup(dist: Any, rank: int, size: int) -> Any:
    group = dist.new_group([size - 1, 0])
    tensor = whole(rank, 3)
    if rank == 0:
        dist.send(tensor, size - 1, group)
    elif rank == size - 1:
        dist.recv(tensor, 0, group)
    return tensor


@program
def compiled(dist: Any, rank: int, size: int) -> Any:
    """Without a graph break; traced again for each backend, whose group is part of the graph."""
    import torch
    import torch.distributed._functional_collectives as functions

    def plain(tensor: Any) -> Any:
        total = tensor * 2
        dist.all_reduce(total)
        gathered = torch.empty(size * 3)
        dist.all_gather_into_tensor(gathered, total + rank)
        return gathered + 1

    def functional(tensor: Any) -> Any:
        return functions.all_reduce(tensor + 1, "sum", dist.group.WORLD) * 2

    outputs = []
    for function in (plain, functional):
        torch._dynamo.reset()
        outputs.append(torch.compile(function, backend="aot_eager", fullgraph=True)(whole(rank, 3)))
    return outputs


def equal_on_both(name: str, folder: str) -> bool:
    import hvd_kernel.torch as hvd

    if is_before(*SINCE.get(name, ())):
        return True
    ours, theirs = on_both(PROGRAMS[name], folder, hvd.rank(), hvd.size())
    assert bits(ours) == bits(theirs), f"{name}: {ours} instead of {theirs}"
    return bool(bits(ours)) or hvd.size() > 2


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program_equals_gloo(ranks: RankPool, name: str, tmp_path: Path) -> None:
    assert ranks.run(equal_on_both, name, str(tmp_path)) == [True] * ranks.np
