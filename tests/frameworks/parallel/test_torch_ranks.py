"""The collectives for torch, as Horovod's own tests look at them: computed values on every rank, errors on every rank."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hvdtest.cases import COMPLEX, FLOATS, MOVED, REDUCED, bits, numbers, reduced, reducible, torch_of
from hvdtest.exact import raises, same

import hvd_kernel.torch as hvd
from hvd_kernel.errors import Mismatch

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch, of complex32

SHAPES = ((17,), (5, 7), (3, 4, 5))  # dims 1 to 3
CARRIED = (*REDUCED, *MOVED)
EACH = pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])


def init() -> tuple[int, int]:
    hvd.init()
    return hvd.rank(), hvd.size()


def tensor(shape: tuple[int, ...], rank: int, dtype: str, op: str = "Sum") -> torch.Tensor:
    return torch_of(numbers(shape, rank, dtype, op), dtype)


def result(shape: tuple[int, ...], dtype: str, op: str) -> torch.Tensor:
    return torch_of(reduced([numbers(shape, rank, dtype, op) for rank in range(hvd.size())], dtype, op), dtype)


def kinds(op: str) -> Iterator[tuple[tuple[int, ...], str]]:
    return ((shape, dtype) for dtype in REDUCED if reducible(dtype, op) for shape in SHAPES)


# Who is who.


def test_there_are_as_many_ranks_as_were_started(started: int) -> None:
    rank, size = init()
    assert size == started
    assert 0 <= rank < size
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))


def test_every_rank_is_a_process_of_its_own() -> None:
    _, size = init()
    assert len(set(hvd.allgather(torch.tensor([os.getpid()])).tolist())) == size


def test_local_and_cross_ranks_fit() -> None:
    rank, size = init()
    found = [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    assert found == [rank, size, 0, 1]
    assert hvd.is_homogeneous()


def test_init_again_changes_nothing() -> None:
    before = init()
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == before


# Allreduce.


@EACH
def test_allreduce(op: str) -> None:
    rank, _ = init()
    for shape, dtype in kinds(op):
        x = tensor(shape, rank, dtype, op)
        kept = x.clone()
        same(hvd.allreduce(x, op=getattr(hvd, op)), result(shape, dtype, op), (shape, dtype))
        same(x, kept, "the input stays")


@EACH
def test_allreduce_in_place(op: str) -> None:
    rank, _ = init()
    for shape, dtype in kinds(op):
        x = tensor(shape, rank, dtype, op)
        assert hvd.allreduce_(x, op=getattr(hvd, op)) is x
        same(x, result(shape, dtype, op), (shape, dtype))


def test_allreduce_is_an_average_by_default() -> None:
    rank, size = init()
    same(hvd.allreduce(torch.full((4,), 2.0 * rank)), torch.full((4,), size - 1.0))
    with pytest.deprecated_call():
        whole = hvd.allreduce(torch.full((4,), 2.0 * rank), average=False)
    same(whole, torch.full((4,), size * (size - 1.0)))


@EACH
def test_many_in_flight(op: str) -> None:
    rank, _ = init()
    started = [
        (hvd.allreduce_async(tensor(shape, rank, dtype, op), op=getattr(hvd, op)), shape, dtype)
        for shape, dtype in kinds(op)
    ]
    for handle, shape, dtype in reversed(started):
        same(hvd.synchronize(handle), result(shape, dtype, op), (shape, dtype))


def test_poll_comes_true() -> None:
    _, size = init()
    handle = hvd.allreduce_async(torch.ones(5), op=hvd.Sum)
    while not hvd.poll(handle):
        continue
    same(hvd.synchronize(handle), torch.full((5,), float(size)))
    assert hvd.synchronize(handle) is None


def test_prescale() -> None:
    rank, _ = init()
    for dtype in FLOATS:
        got = hvd.allreduce(tensor((5, 7), rank, dtype), op=hvd.Sum, prescale_factor=0.5)
        same(got, (result((5, 7), "float64", "Sum") * 0.5).to(got.dtype), dtype)


def test_postscale() -> None:
    rank, _ = init()
    for dtype in FLOATS:
        got = hvd.allreduce(tensor((5, 7), rank, dtype), op=hvd.Sum, postscale_factor=4.0)
        same(got, (result((5, 7), "float64", "Sum") * 4.0).to(got.dtype), dtype)


def test_scalars_and_nothing() -> None:
    rank, size = init()
    same(hvd.allreduce(torch.tensor(rank), op=hvd.Sum), torch.tensor(size * (size - 1) // 2))
    same(hvd.allreduce(torch.empty(0, 3), op=hvd.Sum), torch.empty(0, 3))


def test_strides_do_not_matter() -> None:
    rank, _ = init()
    x = tensor((5, 7), rank, "float32").t()
    assert not x.is_contiguous()
    same(hvd.allreduce(x, op=hvd.Sum), result((5, 7), "float32", "Sum").t())
    every_other = tensor((34,), rank, "int64")[::2]
    same(hvd.allreduce(every_other, op=hvd.Sum), result((34,), "int64", "Sum")[::2])


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression(name: str) -> None:
    rank, _ = init()
    for dtype in ("float32", "float64"):
        got = hvd.allreduce(tensor((5, 7), rank, dtype), op=hvd.Sum, compression=getattr(hvd.Compression, name))
        same(got, result((5, 7), dtype, "Sum"), dtype)


def test_adasum_of_equals_is_one_of_them() -> None:
    init()
    x = torch.arange(1.0, 18.0, dtype=torch.float64)
    torch.testing.assert_close(hvd.allreduce(x, op=hvd.Adasum), x, rtol=1e-14, atol=0.0)


def test_large_ones() -> None:
    rank, size = init()
    x = torch.full((1 << 20,), rank + 1, dtype=torch.float32)
    same(hvd.allreduce(x, op=hvd.Sum), torch.full((1 << 20,), size * (size + 1) / 2))


@EACH
def test_grouped_allreduce(op: str) -> None:
    rank, _ = init()
    for dtype in (dtype for dtype in REDUCED if reducible(dtype, op)):
        got = hvd.grouped_allreduce([tensor(shape, rank, dtype, op) for shape in SHAPES], op=getattr(hvd, op))
        for one, shape in zip(got, SHAPES, strict=True):
            same(one, result(shape, dtype, op), (shape, dtype))


def test_grouped_allreduce_in_place() -> None:
    rank, _ = init()
    xs = [tensor(shape, rank, dtype) for dtype in ("float32", "int64") for shape in SHAPES]
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(xs, op=hvd.Sum), xs, strict=True))
    wanted = [result(shape, dtype, "Sum") for dtype in ("float32", "int64") for shape in SHAPES]
    for x, want in zip(xs, wanted, strict=True):
        same(x, want)


# Allgather, broadcast, alltoall, reducescatter.


def test_allgather() -> None:
    rank, size = init()
    for dtype in CARRIED:
        for shape in SHAPES:
            want = torch.cat([bits(tensor(shape, r, dtype)) for r in range(size)])
            same(bits(hvd.allgather(tensor(shape, rank, dtype))), want, (shape, dtype))


def test_allgather_of_unequal_parts() -> None:
    rank, size = init()
    for dtype in REDUCED:
        for tail in ((), (3,), (2, 3)):
            want = torch.cat([tensor((2 * r + 1, *tail), r, dtype) for r in range(size)])
            same(hvd.allgather(tensor((2 * rank + 1, *tail), rank, dtype)), want, (tail, dtype))


def test_grouped_allgather() -> None:
    rank, size = init()
    got = hvd.grouped_allgather([tensor((rank + 1, n), rank, "int32") for n in (1, 2, 3)])
    for one, n in zip(got, (1, 2, 3), strict=True):
        same(one, torch.cat([tensor((r + 1, n), r, "int32") for r in range(size)]))


def test_broadcast() -> None:
    rank, size = init()
    for root in range(size):
        for dtype in CARRIED:
            for shape in SHAPES:
                x = tensor(shape, rank, dtype)
                same(bits(hvd.broadcast(x, root)), bits(tensor(shape, root, dtype)), (root, dtype))
                same(bits(x), bits(tensor(shape, rank, dtype)), "the input stays")


def test_broadcast_in_place() -> None:
    rank, size = init()
    for root in range(size):
        for dtype in REDUCED:
            x = tensor((5, 7), rank, dtype)
            assert hvd.broadcast_(x, root) is x
            same(x, tensor((5, 7), root, dtype), (root, dtype))


def test_alltoall() -> None:
    rank, size = init()
    for dtype in CARRIED:
        for tail in ((), (3,), (2, 3)):
            sent = [bits(tensor((2 * size, *tail), r, dtype)) for r in range(size)]
            want = torch.cat([one[2 * rank : 2 * rank + 2] for one in sent])
            same(bits(hvd.alltoall(tensor((2 * size, *tail), rank, dtype))), want, (tail, dtype))


def test_alltoall_of_unequal_parts() -> None:
    rank, size = init()
    splits = [[(r + q) % 3 for q in range(size)] for r in range(size)]
    for dtype in REDUCED:
        x = tensor((sum(splits[rank]), 2), rank, dtype)
        got, received = hvd.alltoall(x, torch.tensor(splits[rank], dtype=torch.int32))
        sent = [tensor((sum(splits[r]), 2), r, dtype).split(splits[r]) for r in range(size)]
        same(got, torch.cat([sent[r][rank] for r in range(size)]), dtype)
        assert received.tolist() == [splits[r][rank] for r in range(size)]


def test_alltoall_to_one() -> None:
    rank, size = init()
    got, received = hvd.alltoall(torch.full((3,), rank), [3] + [0] * (size - 1))
    assert got.tolist() == ([r for r in range(size) for _ in range(3)] if rank == 0 else [])
    assert received.tolist() == ([3] * size if rank == 0 else [0] * size)


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_reducescatter(op: str) -> None:
    rank, size = init()
    for dtype in (dtype for dtype in REDUCED if dtype != "bool" and reducible(dtype, op)):
        for tail in ((), (3,), (2, 3)):
            shape = (2 * size, *tail)
            got = hvd.reducescatter(tensor(shape, rank, dtype, op), op=getattr(hvd, op))
            same(got, result(shape, dtype, op)[2 * rank : 2 * rank + 2], (tail, dtype))


def test_reducescatter_of_rows_that_do_not_divide() -> None:
    rank, size = init()
    rows = 2 * size + 1
    counts = [rows // size + (r < rows % size) for r in range(size)]
    mine = result((rows, 3), "float64", "Sum").split(counts)[rank]
    same(hvd.reducescatter(tensor((rows, 3), rank, "float64"), op=hvd.Sum), mine)


def test_grouped_reducescatter() -> None:
    rank, size = init()
    got = hvd.grouped_reducescatter([tensor((size, n), rank, "float32") for n in (1, 2, 3)], op=hvd.Sum)
    for one, n in zip(got, (1, 2, 3), strict=True):
        same(one, result((size, n), "float32", "Sum")[rank : rank + 1])


# Objects, barrier, join.


def test_objects() -> None:
    rank, size = init()
    for root in range(size):
        assert hvd.broadcast_object({"of": rank, "list": ["x"] * rank}, root) == {"of": root, "list": ["x"] * root}
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]


def test_a_barrier_waits_for_what_was_started() -> None:
    _, size = init()
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
    same(hvd.synchronize(handle), torch.full((3,), float(size)))
    hvd.barrier()


def test_join() -> None:
    """Each rank in turn has no batch left, and adds nothing."""
    rank, size = init()
    for first in range(size):
        if rank != first:
            got = hvd.allreduce(torch.full((5,), rank + 1.0), name=f"without{first}", op=hvd.Sum)
            same(got, torch.full((5,), float(sum(r + 1 for r in range(size) if r != first))))
        last = hvd.join()
        assert last != first or size == 1
        assert hvd.allgather_object(last, name="heard") == [last] * size
    same(hvd.allreduce(torch.ones(2), name="after", op=hvd.Sum), torch.full((2,), float(size)))


# Errors, on every rank; what follows works.


def refused(kind: type[Exception], text: str, function: object, *args: object, **more: object) -> None:
    """It is refused on every rank, in the same words where they come from the ranks' comparison."""
    error = raises(kind, text, function, *args, **more)
    if kind is Mismatch:
        assert len(set(hvd.allgather_object(str(error)))) == 1
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))


def odd_one() -> bool:
    """True on one of several ranks; alone nobody can be at odds."""
    rank, size = init()
    return size > 1 and rank == size - 1


def disagreement(text: str, function: object, *args: object, **more: object) -> None:
    if hvd.size() > 1:
        refused(Mismatch, text, function, *args, **more)
    else:
        function(*args, **more)


def test_other_shapes() -> None:
    odd = odd_one()
    disagreement("Mismatched ALLREDUCE tensor shapes", hvd.allreduce, torch.ones(4 + odd), name="shapes")
    disagreement("Mismatched ALLREDUCE tensor shapes", hvd.allreduce, torch.ones([2, 2] if odd else [4]), name="dims")
    disagreement("Mismatched ALLGATHER tensor shapes", hvd.allgather, torch.ones(2, 3 + odd), name="rows")
    disagreement("Mismatched BROADCAST tensor shapes", hvd.broadcast, torch.ones(4 + odd), 0, name="root")


def test_other_types() -> None:
    x = torch.ones(4 * hvd.size(), dtype=torch.int32 if odd_one() else torch.float32)
    for function in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall):
        disagreement("Mismatched data types", function, x, name=function.__name__)
    disagreement("Mismatched data types", hvd.broadcast, x, 0, name="broadcast")


def test_other_operators_and_factors() -> None:
    odd, x = odd_one(), torch.ones(4)
    op, factor = (hvd.Sum, 2.0) if odd else (hvd.Average, 1.0)
    disagreement("Mismatched reduction operation", hvd.allreduce, x, name="op", op=op)
    disagreement("Mismatched prescale and/or postscale", hvd.allreduce, x, name="factor", prescale_factor=factor)


def test_other_roots() -> None:
    text = "Mismatched BROADCAST root ranks: One rank specified root rank "
    disagreement(text, hvd.broadcast, torch.ones(3), int(odd_one()), name="roots")


def test_a_root_that_does_not_exist() -> None:
    _, size = init()
    refused(ValueError, f"broadcast received invalid root rank {size}", hvd.broadcast, torch.ones(1), size)


def test_splits_that_cannot_be() -> None:
    _, size = init()
    x = torch.ones(2 * size)
    refused(ValueError, "Number of entries in splits does not equal", hvd.alltoall, x, [1] * (size + 1))
    refused(ValueError, "Sum of splits entries is greater than", hvd.alltoall, x, [3] * size)
    refused(ValueError, "alltoall expects a 1D splits tensor", hvd.alltoall, x, [[1] * size])
    if size > 1:
        refused(ValueError, "not an even multiple of the number of workers", hvd.alltoall, torch.ones(2 * size + 1))


def test_what_cannot_be_reduced() -> None:
    init()
    refused(ValueError, "The op parameter supersedes average", hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum)
    refused(ValueError, "op=77 does not exist", hvd.allreduce, torch.ones(1), op=77)
    for dtype in COMPLEX:
        refused(ValueError, "is not supported", hvd.allreduce, torch.ones(1, dtype=getattr(torch, dtype)), op=hvd.Max)
    refused(ValueError, "Reducescatter does not support scalar inputs", hvd.reducescatter, torch.tensor(1.0))


def test_a_name_that_is_in_flight() -> None:
    rank, size = init()
    if size > 1:
        if rank == 0:
            hvd.allreduce_async(torch.ones(1), name="twice", op=hvd.Sum)
            raises(ValueError, "with the same name as another tensor", hvd.allreduce_async, torch.ones(1), name="twice")
        hvd.barrier()
        if rank:
            same(hvd.allreduce(torch.ones(1), name="twice", op=hvd.Sum), torch.tensor([float(size)]))
    hvd.barrier()
