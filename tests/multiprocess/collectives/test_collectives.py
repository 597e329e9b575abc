"""Every collective, form and data type of hvd_kernel.torch: exact values on every rank, over shared memory and TCP."""

from __future__ import annotations

import numpy as np
import pytest
from hvdtest.arrays import CARRIED, REDUCIBLE, SHAPES, tensor, total, values
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (4, "shm"), (4, "tcp")))


def sums(dtype: str) -> int:
    """Sum in all four forms."""
    import hvd_kernel.torch as hvd

    for shape in SHAPES:
        mine, want = tensor(values(shape, hvd.rank()), dtype), tensor(total(shape, hvd.size()), dtype)
        before, name = mine.clone(), f"{dtype}{shape}"
        same(hvd.allreduce(mine, name=name, op=hvd.Sum), want, name)
        same(hvd.synchronize(hvd.allreduce_async(mine, name=name, op=hvd.Sum)), want, name)
        same(mine, before, "the input")
        handle = hvd.allreduce_async_(mine, name=name, op=hvd.Sum)
        result = hvd.synchronize(handle)
        assert result is mine
        same(mine, want, name)
        assert hvd.synchronize(handle) is None
        mine.copy_(before)
        assert hvd.allreduce_(mine, name=name, op=hvd.Sum) is mine
        same(mine, want, name)
    return len(SHAPES)


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_sum(ranks: RankPool, dtype: str) -> None:
    assert ranks.run(sums, dtype) == [len(SHAPES)] * ranks.np


def averages() -> None:
    import torch

    import hvd_kernel.torch as hvd

    size = hvd.size()
    for dtype in REDUCIBLE:
        for shape in SHAPES:
            mine, whole = tensor(values(shape, hvd.rank()), dtype), torch.from_numpy(total(shape, size))
            if mine.dtype.is_floating_point:
                exact = torch.float64 if dtype == "float64" else torch.float32
                want = (whole.to(exact) / size).to(mine.dtype)
            else:
                want = torch.div(whole, size, rounding_mode="trunc").to(mine.dtype)
            same(hvd.allreduce(mine, name=f"average.{dtype}{shape}"), want, (dtype, shape))
    minus = torch.tensor([-3 * (hvd.rank() + 1)], dtype=torch.int32)
    want = -(3 * size * (size + 1) // 2 // size)
    assert hvd.allreduce(minus, name="minus").item() == want, "integers are averaged toward zero"


def test_average(ranks: RankPool) -> None:
    ranks.run(averages)


WRAPPING = {  # values of even and of odd ranks, whose sums do not fit
    "uint8": ([200, 250, 1], [100, 250, 0]),
    "int8": ([-128, 127, -3], [-128, 126, 0]),
    "int32": ([2_000_000_000, -(2**31)], [2_000_000_000, -(2**31)]),
    "int64": ([2**63 - 1, -(2**63)], [2**63 - 3, -(2**63)]),
}


def integer_means() -> None:
    import torch

    import hvd_kernel.numpy as hvd_numpy
    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for dtype, pair in WRAPPING.items():
        parts = [pair[r % 2] for r in range(size)]
        totals = [sum(column) for column in zip(*parts, strict=True)]
        means = [abs(total) // size * (1 if total > 0 else -1) for total in totals]
        for count in (1, 40_000):  # in one step, and in slices
            mine = torch.tensor(parts[rank] * count, dtype=getattr(torch, dtype))
            want, name = torch.tensor(means * count, dtype=mine.dtype), f"mean.{dtype}.{count}"
            same(hvd.allreduce(mine, name=name), want, name)
            same(hvd.synchronize(hvd.allreduce_async(mine, name=name)), want, name)
            same(hvd.grouped_allreduce([mine, mine.float()], name=name)[0], want, name)
            assert hvd_numpy.allreduce(mine.numpy(), name=name).tolist() == want.tolist()
            same(hvd.reducescatter(mine.expand(size, -1), name=name)[0], want, name)
            same(hvd.allreduce_(mine, name=name), want, name)
    halves = torch.tensor([200 if rank == 0 else 100, 250], dtype=torch.uint8)
    scaled = [min((200 + 100 * (size - 1)) // 2, 255), min(125 * size, 255)]
    assert hvd.allreduce(halves, name="halves", op=hvd.Sum, postscale_factor=0.5).tolist() == scaled
    assert hvd.allreduce(halves, name="halves", op=hvd.Sum).tolist() == [
        (200 + 100 * (size - 1)) % 256,
        250 * size % 256,
    ]
    rows = torch.sparse_coo_tensor([[rank, size]], halves, (size + 1,))
    sparse = hvd.sparse_allreduce_async(rows, "rows", hvd.Average)().to_dense()
    assert (sparse.dtype, sparse[size].item()) == (torch.float32, 250.0)


def test_means_of_integers_are_exact_where_sums_wrap(ranks: RankPool) -> None:
    ranks.run(integer_means)


def scaled() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    x = torch.arange(10, dtype=torch.float64) + rank
    want = (torch.arange(10, dtype=torch.float64) * size + size * (size - 1) / 2) * 0.5 * 4
    same(hvd.allreduce(x, name="scaled", op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), want)
    want32 = (want / size).to(torch.float32)
    same(hvd.allreduce(x.float(), name="scaled", op=hvd.Average, prescale_factor=0.5, postscale_factor=4.0), want32)


def test_scale_factors(ranks: RankPool) -> None:
    ranks.run(scaled)


def once_rounded() -> list[float]:
    """The small parts of a 16 bit sum are not lost one by one."""
    import torch

    import hvd_kernel.torch as hvd

    small = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
    found = []
    for dtype, part in small.items():
        mine = torch.tensor([1.0 if hvd.rank() == 0 else part], dtype=dtype)
        want = torch.tensor([1.0 + part * (hvd.size() - 1)], dtype=torch.float32).to(dtype)
        same(hvd.allreduce(mine, name=f"once.{dtype}", op=hvd.Sum), want, dtype)
        found.append(want.item())
    return found


def test_16_bit_sums_are_rounded_once(ranks: RankPool) -> None:
    found = ranks.run(once_rounded)
    assert found == [found[0]] * ranks.np
    assert ranks.np < 3 or found[0] > [1.0, 1.0], "adding one by one would have given 1"


def groups() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    shapes = [(3,), (0,), (2, 2), (5000,), ()]
    mine = [tensor(values(s, rank), d) for s in shapes for d in ("float32", "int64", "bfloat16")]
    want = [tensor(total(s, size), d) for s in shapes for d in ("float32", "int64", "bfloat16")]
    got = hvd.grouped_allreduce(mine, name="group", op=hvd.Sum)
    assert isinstance(got, list)
    handled = hvd.synchronize(hvd.grouped_allreduce_async(mine, name="group", op=hvd.Sum))
    assert isinstance(handled, tuple)
    for a, b, w in zip(got, handled, want, strict=True):
        same(a, w)
        same(b, w)
    copies = [m.clone() for m in mine]
    handled = hvd.synchronize(hvd.grouped_allreduce_async_(copies, name="group", op=hvd.Sum))
    assert all(a is b for a, b in zip(handled, copies, strict=True))
    again = hvd.grouped_allreduce_(mine, name="group", op=hvd.Sum)
    assert all(a is b for a, b in zip(again, mine, strict=True))
    for a, b, w in zip(copies, mine, want, strict=True):
        same(a, w)
        same(b, w)
    raises(ValueError, "at least one tensor", hvd.grouped_allreduce, [])
    assert torch.equal(hvd.allreduce(torch.ones(1), name="after"), torch.ones(1))


def test_groups(ranks: RankPool) -> None:
    ranks.run(groups)


def gathered() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for dtype in CARRIED:
        for rows in ([2] * size, list(range(size)), [0] * size, [(r * 3 + 1) % 4 for r in range(size)]):
            for rest in ((), (3,), (2, 5)):
                parts = [tensor(values((rows[r], *rest), r), dtype) for r in range(size)]
                want, name = torch.cat(parts), f"{dtype}{rows}{rest}"
                same(hvd.allgather(parts[rank], name=name), want, name)
                same(hvd.synchronize(hvd.allgather_async(parts[rank], name=name)), want, name)
    held = hvd.allgather(torch.full((1000,), float(rank)), name="held")
    for _ in range(5):  # the core's memory must not be used again while a tensor still lies there
        hvd.allgather(torch.full((1000,), -1.0), name="held")
    same(held, torch.arange(size).float().repeat_interleave(1000))
    held += 1
    raises(IndexError, "tuple index out of range", hvd.allgather, torch.tensor(1.0))


def test_allgather(ranks: RankPool) -> None:
    ranks.run(gathered)


def broadcasts() -> None:
    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        for dtype in CARRIED:
            for shape in SHAPES:
                mine, want = tensor(values(shape, rank), dtype), tensor(values(shape, root), dtype)
                before, name = mine.clone(), f"{dtype}{shape}"
                same(hvd.broadcast(mine, root, name=name), want, name)
                same(hvd.synchronize(hvd.broadcast_async(mine, root, name=name)), want, name)
                same(mine, before, "the input")
                assert hvd.synchronize(hvd.broadcast_async_(mine, root, name=name)) is mine
                same(mine, want, name)
                mine.copy_(before)
                assert hvd.broadcast_(mine, root, name=name) is mine
                same(mine, want, name)
    text = f"broadcast received invalid root rank {size} for provided process set"
    raises(ValueError, text, hvd.broadcast, mine, size)
    raises(ValueError, "invalid root rank -1", hvd.broadcast_, mine, -1)


def test_broadcast(ranks: RankPool) -> None:
    ranks.run(broadcasts)


def strided() -> None:
    """Columns, transposed and expanded tensors, every second element, negated views: in and out of place."""
    import torch

    import hvd_kernel.torch as hvd

    size = hvd.size()
    base = tensor(values((6, 8), hvd.rank()), "float32")
    want = tensor(total((6, 8), size), "float32")
    for name, view in {"t": lambda x: x.t(), "column": lambda x: x[:, 3], "second": lambda x: x[::2, ::3]}.items():
        same(hvd.allreduce(view(base), name=name, op=hvd.Sum), view(want).contiguous(), name)
        whole = base.clone()
        part = view(whole)
        assert hvd.allreduce_(part, name=name, op=hvd.Sum) is part
        same(view(whole).contiguous(), view(want).contiguous(), name)
        changed = (whole != base).sum()
        assert changed <= part.numel(), "nothing beside the view was written"
    image = tensor(values((2, 3, 4, 5), hvd.rank()), "float32").to(memory_format=torch.channels_last)
    hvd.allreduce_(image, name="image", op=hvd.Sum)
    same(image.contiguous(), tensor(total((2, 3, 4, 5), size), "float32"))
    assert image.is_contiguous(memory_format=torch.channels_last)
    negative = torch.complex(torch.zeros(5), base[0, :5].clone()).conj().imag
    assert negative.is_neg()
    same(hvd.allreduce(negative, name="negative", op=hvd.Sum), -want[0, :5])
    same(hvd.allgather(base.t(), name="rows")[:8], tensor(values((6, 8), 0), "float32").t().contiguous())


def test_non_contiguous(ranks: RankPool) -> None:
    ranks.run(strided)


def shuffled() -> None:
    """Ranks submit in different orders; names match them."""
    import torch

    import hvd_kernel.torch as hvd

    order = np.random.default_rng(hvd.rank()).permutation(50).tolist()
    handles = {i: hvd.allreduce_async(torch.full((i + 1,), float(i)), name=f"n{i}", op=hvd.Sum) for i in order}
    for i in reversed(order):
        same(hvd.synchronize(handles[i]), torch.full((i + 1,), float(i * hvd.size())))
    raises(ValueError, f"Handle {handles[0]} was not created or has been cleared.", hvd.poll, handles[0])


def test_any_order(ranks: RankPool) -> None:
    ranks.run(shuffled)


def polled() -> None:
    import time

    import torch

    import hvd_kernel.torch as hvd

    handle = hvd.allreduce_async(torch.ones(10), name="polled", op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    same(hvd.synchronize(handle), torch.full((10,), float(hvd.size())))


def test_poll(ranks: RankPool) -> None:
    ranks.run(polled)


def unnamed() -> None:
    import torch

    import hvd_kernel.torch as hvd

    x = torch.full((4,), float(hvd.rank() + 1))
    whole = float(hvd.size() * (hvd.size() + 1) // 2)
    handles = [hvd.allreduce_async(x * i, op=hvd.Sum) for i in range(10)]
    for i, handle in enumerate(handles):
        same(hvd.synchronize(handle), torch.full((4,), whole * i))
    for _ in range(3):
        hvd.barrier()
    same(hvd.broadcast(x, 0), torch.ones(4))


def test_without_names(ranks: RankPool) -> None:
    ranks.run(unnamed)


def from_threads() -> None:
    """Two threads wait for collectives at once; neither holds the other up."""
    import threading

    import torch

    import hvd_kernel.torch as hvd

    wrong: list[str] = []

    def work(label: str) -> None:
        for i in range(30):
            got = hvd.allreduce(torch.full((100,), float(i)), name=f"{label}{i}", op=hvd.Sum)
            if not torch.equal(got, torch.full((100,), float(i * hvd.size()))):
                wrong.append(f"{label}{i}")

    threads = [threading.Thread(target=work, args=(label,)) for label in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads(ranks: RankPool) -> None:
    ranks.run(from_threads)


def large() -> None:
    import torch

    import hvd_kernel.torch as hvd

    x = torch.arange(5_000_011, dtype=torch.float32) % 1024 + hvd.rank()
    want = (torch.arange(5_000_011, dtype=torch.float32) % 1024) * hvd.size() + hvd.size() * (hvd.size() - 1) // 2
    same(hvd.allreduce(x, name="large", op=hvd.Sum), want)
    same(hvd.broadcast(x, hvd.size() - 1, name="large"), torch.arange(5_000_011) % 1024 + hvd.size() - 1.0)


def test_large(ranks: RankPool) -> None:
    ranks.run(large)
