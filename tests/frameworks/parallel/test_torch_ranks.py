"""The collectives for torch, checked like Horovod's own tests: computed values and errors on every rank."""

from __future__ import annotations

import os

import pytest
import torch
from frameworks.conformance.check import SCENES, TRAININGS, names_of, run
from frameworks.conformance.table import SUBJECTS
from hvdtest.exact import same

import hvd_kernel.torch as hvd

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # torch, of complex32


def init() -> tuple[int, int]:
    hvd.init()
    return hvd.rank(), hvd.size()


# Numbers of the ranks.


def test_size_is_the_number_of_started_ranks(started: int) -> None:
    rank, size = init()
    assert size == started
    assert 0 <= rank < size
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))


def test_every_rank_is_a_separate_process() -> None:
    _, size = init()
    assert len(set(hvd.allgather(torch.tensor([os.getpid()])).tolist())) == size


def test_local_and_cross_ranks_are_consistent() -> None:
    rank, size = init()
    found = [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    assert found == [rank, size, 0, 1]
    assert hvd.is_homogeneous()


def test_init_again_changes_nothing() -> None:
    before = init()
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == before


@pytest.mark.parametrize("subject", [*SUBJECTS, *SCENES, TRAININGS])
@pytest.mark.parametrize("framework", ["torch", "torch, async"])
def test_table(framework: str, subject: str) -> None:
    """Every call and training of the tables of frameworks/conformance."""
    _, size = init()
    report = run(framework, subject)
    assert not report["wrong"]
    assert report["ran"] == names_of(framework, subject, size)
    assert hvd.allgather_object(report["told"]) == [report["told"]] * size


def test_barrier_waits_for_started_operations() -> None:
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
