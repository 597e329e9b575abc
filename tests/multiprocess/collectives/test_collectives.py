"""Collectives of hvd_kernel.torch beyond the table of frameworks/conformance: memory, views, threads, size."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (4, "shm"), (4, "tcp")))


def values(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Whole numbers 0..15, different on every rank and at every place: sums are exact in every type, in any order."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count, dtype=np.int64) * 7 + rank * 5 + 1) % 16).reshape(shape)


def total(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.asarray(np.sum([values(shape, rank) for rank in range(size)], axis=0))


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).float()


def once_rounded() -> list[float]:
    """The small parts of a 16 bit sum are not lost one by one."""
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


def held() -> None:
    """The core's memory is not used again while a tensor still lies there."""
    size = hvd.size()
    result = hvd.allgather(torch.full((1000,), float(hvd.rank())), name="held")
    for _ in range(5):
        hvd.allgather(torch.full((1000,), -1.0), name="held")
    same(result, torch.arange(size).float().repeat_interleave(1000))
    result += 1


def test_results_keep_their_memory(ranks: RankPool) -> None:
    ranks.run(held)


def sparse_means() -> None:
    rank, size = hvd.rank(), hvd.size()
    rows = torch.sparse_coo_tensor([[rank, size]], torch.tensor([200, 250], dtype=torch.uint8), (size + 1,))
    mean = hvd.sparse_allreduce_async(rows, "rows", hvd.Average)().to_dense()
    assert (mean.dtype, mean[size].item()) == (torch.float32, 250.0)


def test_a_sparse_mean_of_bytes(ranks: RankPool) -> None:
    ranks.run(sparse_means)


def strided() -> None:
    """Columns, transposed and expanded tensors, every second element, negated views: in and out of place."""
    size = hvd.size()
    base = tensor(values((6, 8), hvd.rank()))
    want = tensor(total((6, 8), size))
    for name, view in {"t": lambda x: x.t(), "column": lambda x: x[:, 3], "second": lambda x: x[::2, ::3]}.items():
        same(hvd.allreduce(view(base), name=name, op=hvd.Sum), view(want).contiguous(), name)
        whole = base.clone()
        part = view(whole)
        assert hvd.allreduce_(part, name=name, op=hvd.Sum) is part
        same(view(whole).contiguous(), view(want).contiguous(), name)
        changed = (whole != base).sum()
        assert changed <= part.numel(), "nothing beside the view was written"
    image = tensor(values((2, 3, 4, 5), hvd.rank())).to(memory_format=torch.channels_last)
    hvd.allreduce_(image, name="image", op=hvd.Sum)
    same(image.contiguous(), tensor(total((2, 3, 4, 5), size)))
    assert image.is_contiguous(memory_format=torch.channels_last)
    negative = torch.complex(torch.zeros(5), base[0, :5].clone()).conj().imag
    assert negative.is_neg()
    same(hvd.allreduce(negative, name="negative", op=hvd.Sum), -want[0, :5])
    raises(ValueError, "expanded", hvd.allreduce_, torch.ones(1).expand(3))
    same(hvd.allgather(base.t(), name="rows")[:8], tensor(values((6, 8), 0)).t().contiguous())


def test_non_contiguous(ranks: RankPool) -> None:
    ranks.run(strided)


def polled() -> None:
    import time

    handle = hvd.allreduce_async(torch.ones(10), name="polled", op=hvd.Sum)
    while not hvd.poll(handle):
        time.sleep(0.001)
    same(hvd.synchronize(handle), torch.full((10,), float(hvd.size())))


def test_poll(ranks: RankPool) -> None:
    ranks.run(polled)


def unnamed() -> None:
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
    x = torch.arange(5_000_011, dtype=torch.float32) % 1024 + hvd.rank()
    want = (torch.arange(5_000_011, dtype=torch.float32) % 1024) * hvd.size() + hvd.size() * (hvd.size() - 1) // 2
    same(hvd.allreduce(x, name="large", op=hvd.Sum), want)
    same(hvd.broadcast(x, hvd.size() - 1, name="large"), torch.arange(5_000_011) % 1024 + hvd.size() - 1.0)


def test_large(ranks: RankPool) -> None:
    ranks.run(large)


ELEMENTS = 2**31 + 17
NEEDED = 2 * ELEMENTS + (2 << 30)  # two ranks, in place, and what everything else takes


def huge(elements: int) -> list[int]:
    hvd.init()
    rank = hvd.rank()
    x = torch.full((elements,), rank + 1, dtype=torch.int8)
    x[2**31 - 1] = 7 + rank
    x[2**31] = 20 + rank
    x[-1] = 40 + rank
    hvd.allreduce_(x, name="huge", op=hvd.Sum)
    found = [int(x[i]) for i in (0, 2**30, 2**31 - 1, 2**31, elements - 1)]
    wrong = sum(int((part != 3).sum()) for part in x.split(1 << 27))
    hvd.shutdown()
    return [*found, wrong]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_over_two_to_the_31() -> None:
    free = psutil.virtual_memory().available
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED >> 20} MiB of memory, {free >> 20} are free")
    with RankPool(2) as pool:
        assert pool.run(huge, ELEMENTS, timeout=250) == [[3, 3, 15, 41, 81, 3]] * 2
