"""The collectives for torch, as Horovod's own tests look at them: computed values on every rank, errors on every rank."""

from __future__ import annotations

import os

import pytest
import torch
from frameworks.conformance.check import SCENES, names_of, run
from frameworks.conformance.table import SUBJECTS
from hvdtest.exact import raises, same

import hvd_kernel.torch as hvd

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch, of complex32


def init() -> tuple[int, int]:
    hvd.init()
    return hvd.rank(), hvd.size()


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


@pytest.mark.parametrize("subject", [*SUBJECTS, *SCENES])
@pytest.mark.parametrize("framework", ["torch", "torch, async"])
def test_table(framework: str, subject: str) -> None:
    """Every call of the table of frameworks/conformance."""
    _, size = init()
    report = run(framework, subject)
    assert not report["wrong"]
    assert report["ran"] == names_of(framework, subject, size)
    assert hvd.allgather_object(report["told"]) == [report["told"]] * size


def test_allreduce_is_an_average_by_default() -> None:
    rank, size = init()
    same(hvd.allreduce(torch.full((4,), 2.0 * rank)), torch.full((4,), size - 1.0))
    with pytest.deprecated_call():
        whole = hvd.allreduce(torch.full((4,), 2.0 * rank), average=False)
    same(whole, torch.full((4,), size * (size - 1.0)))


def test_poll_comes_true() -> None:
    _, size = init()
    handle = hvd.allreduce_async(torch.ones(5), op=hvd.Sum)
    while not hvd.poll(handle):
        continue
    same(hvd.synchronize(handle), torch.full((5,), float(size)))
    assert hvd.synchronize(handle) is None


def test_adasum_of_equals_is_one_of_them() -> None:
    init()
    x = torch.arange(1.0, 18.0, dtype=torch.float64)
    torch.testing.assert_close(hvd.allreduce(x, op=hvd.Adasum), x, rtol=1e-14, atol=0.0)


def test_large_ones() -> None:
    rank, size = init()
    x = torch.full((1 << 20,), rank + 1, dtype=torch.float32)
    same(hvd.allreduce(x, op=hvd.Sum), torch.full((1 << 20,), size * (size + 1) / 2))


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
