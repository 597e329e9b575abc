"""Process sets: static and dynamic, overlapping, and refusals that lose nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool, clean_environment
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


def reset_between() -> None:
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


layout = layouts((2, "shm"), (3, "tcp"), nightly=((4, "shm"),))


@pytest.fixture
def ranks(ranks: RankPool) -> RankPool:
    ranks.run(reset_between)
    return ranks


def lived() -> None:
    rank, size = hvd.rank(), hvd.size()
    head = hvd.add_process_set(list(range(size - 1)))
    tail = hvd.add_process_set(hvd.ProcessSet(range(1, size)))
    assert (head.process_set_id, tail.process_set_id) == (1, 2)
    assert (head.ranks, head.size(), head.included()) == (list(range(size - 1)), size - 1, rank < size - 1)
    assert str(tail) == f"ProcessSet(process_set_id=2, ranks={list(range(1, size))}, mpi_comm=None)"
    for one in (head, tail):
        if not one.included():
            raises(ValueError, "Process is not part of provided process set.", one.rank)
            text = f"Allreduce: Rank {rank} is not a member of the provided process set."
            raises(ValueError, text, hvd.allreduce, torch.ones(2), process_set=one)
            raises(ValueError, f"Rank {rank} is not a member", hvd.barrier, one)
            continue
        assert one.rank() == one.ranks.index(rank)
        whole = float(sum(one.ranks))
        same(
            hvd.allreduce(torch.full((3,), float(rank)), name="x", op=hvd.Sum, process_set=one), torch.full((3,), whole)
        )
        same(
            hvd.allgather(torch.full((rank,), rank), name="x", process_set=one),
            torch.cat([torch.full((r,), r) for r in one.ranks]),
        )
        root = one.ranks[-1]
        same(hvd.broadcast(torch.tensor([rank]), root, name="x", process_set=one), torch.tensor([root]))
        outside = next(r for r in range(size) if r not in one.ranks)
        text = f"broadcast received invalid root rank {outside} for provided process set"
        raises(ValueError, text, hvd.broadcast, torch.ones(1), outside, process_set=one)
        assert hvd.broadcast_object(rank, root, process_set=one) == root
        assert hvd.allgather_object(rank, process_set=one) == one.ranks
        hvd.barrier(one)
    same(hvd.allreduce(torch.ones(1), name="all", op=hvd.Sum), torch.tensor([float(size)]))
    assert hvd.remove_process_set(head) is True
    assert (head.process_set_id, head.size(), head.included()) == (None, None, None)
    assert hvd.remove_process_set(head) is False
    again = hvd.add_process_set([0])
    assert again.process_set_id == 1, "ids are used again"
    hvd.shutdown()
    assert tail.process_set_id is None
    hvd.init(process_sets=[tail])
    assert tail.process_set_id == 1
    assert again.process_set_id is None
    raises(ValueError, "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding", hvd.add_process_set, [0])
    raises(ValueError, "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow removing", hvd.remove_process_set, tail)


def test_lifecycle_of_a_process_set(ranks: RankPool) -> None:
    ranks.run(lived)


def refused() -> None:
    from hvd_kernel.errors import Mismatch

    size = hvd.size()
    pending = hvd.allreduce_async(torch.ones(3), name="unharmed", op=hvd.Sum)
    for wrong, text in (
        ([0, size], f"Tried to register process set with invalid rank: {size}"),
        ([-1], "invalid rank: -1"),
        ([0, 0], "holds each rank once"),
        ([], "at least one rank"),
        (range(size), "Attempted to add a duplicate process set"),
    ):
        raises(ValueError, text, hvd.add_process_set, wrong)
    first = hvd.add_process_set([0])
    raises(ValueError, "Attempted to add a duplicate process set", hvd.add_process_set, [0])
    raises(ValueError, "Attempted to add a duplicate process set", hvd.add_process_set, first)
    same(hvd.synchronize(pending), torch.full((3,), float(size)))
    assert hvd.remove_process_set(first)
    text = "Attempted to register process set with mismatching size/values on different ranks"
    raises(Mismatch, text, hvd.add_process_set, [0] if hvd.rank() else [1])
    same(hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum), torch.tensor([float(size)]))
    hvd.shutdown()
    twice = [hvd.ProcessSet([0]), hvd.ProcessSet([0])]
    raises(ValueError, "process_sets entry number 1 is a duplicate", hvd.init, process_sets=twice)
    assert hvd.is_initialized()
    hvd.init(process_sets=twice[:1])
    assert twice[0].process_set_id == 1


def test_invalid_calls_are_refused(ranks: RankPool) -> None:
    ranks.run(refused)


def apart() -> None:
    """A set progresses while another set with a common rank waits; submission orders cross."""
    rank, size = hvd.rank(), hvd.size()
    sets = [hvd.add_process_set([r, (r + 1) % size]) for r in range(size)] if size > 2 else [hvd.add_process_set([0])]
    mine = [one for one in sets if one.included()]
    waiting = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum) if rank else -1  # rank 0 is not there yet
    for number in range(20):
        order = mine if (number + rank) % 2 else mine[::-1]
        handles = [
            (one, hvd.allreduce_async(torch.ones(5), name=f"n{number}", op=hvd.Sum, process_set=one)) for one in order
        ]
        for one, handle in handles:
            same(hvd.synchronize(handle), torch.full((5,), float(one.size())))
    if not rank:
        waiting = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    same(hvd.synchronize(waiting), torch.full((2,), float(size)))


def test_process_sets_progress_independently(ranks: RankPool) -> None:
    ranks.run(apart)


def differentiated() -> None:
    rank, size = hvd.rank(), hvd.size()
    one = hvd.add_process_set(list(range(1, size)))
    if not one.included():
        return
    x = torch.ones(rank, 2, requires_grad=True)
    y = hvd.allgather(x, name="g", process_set=one)
    begin = sum(range(1, rank))
    (y * (torch.arange(y.shape[0]).float()[:, None])).sum().backward()
    same(x.grad, torch.arange(begin, begin + rank).float()[:, None].expand(-1, 2).contiguous())
    x = torch.ones(3, requires_grad=True)
    hvd.allreduce(x, name="r", op=hvd.Sum, process_set=one).sum().backward()
    same(x.grad, torch.full((3,), size - 1.0))


def test_derivatives_in_a_set(ranks: RankPool) -> None:
    ranks.run(differentiated)


def by_communicator() -> None:
    """Every rank gives the half that it is in."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = hvd.ProcessSet(world.Split(world.rank % 2, world.rank))
    assert hvd.mpi_enabled() is False, "not yet"
    hvd.init(world, process_sets=[half])
    assert half.ranks == [r for r in range(world.size) if r % 2 == world.rank % 2]
    assert half.process_set_id == world.rank % 2 + 1
    assert (hvd.mpi_enabled(), hvd.mpi_threads_supported()) == (True, MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert hvd.allgather_object(world.rank, process_set=half) == half.ranks
    hvd.barrier()  # a shutdown ends all sets, also those of the other half
    hvd.shutdown()


def twice_by_communicator() -> None:
    """The lower half's communicator is [0] again on rank 0 alone, which refuses it; the others have their sets."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hvd.init(world)
    assert hvd.global_process_set.mpi_comm is world
    hvd.barrier()
    hvd.shutdown()
    alone = world.Split(min(world.rank, 1), world.rank)
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(alone)]
    if world.rank == 0:
        raises(ValueError, "process_sets entry number 1 is a duplicate", hvd.init, world, process_sets=sets)
        assert [one.process_set_id for one in sets] == [1, None]
    else:
        hvd.init(world, process_sets=sets)
        assert [one.process_set_id for one in sets] == [1, 2]
        assert sets[1].ranks == list(range(1, world.size))
        assert hvd.allgather_object(world.rank, process_set=sets[1]) == sets[1].ranks
    assert hvd.allgather_object(world.rank) == list(range(world.size))
    hvd.shutdown()
    hvd.init()
    assert hvd.global_process_set.mpi_comm is None
    hvd.barrier()
    hvd.shutdown()


def allowed_by_the_environment() -> list[int]:
    hvd.init()
    one = hvd.add_process_set([1])
    assert one.process_set_id == 1
    return one.ranks


@pytest.mark.parametrize(
    "variable", ["HOROVOD_DYNAMIC_PROCESS_SETS", pytest.param("HVD_DYNAMIC_PROCESS_SETS", marks=pytest.mark.nightly)]
)
def test_process_sets_are_dynamic_if_the_environment_says_so(variable: str) -> None:
    with RankPool(2, **{variable: "Yes"}) as pool:
        assert pool.run(allowed_by_the_environment) == [[1], [1]]


@pytest.mark.parametrize("np", [2, *(pytest.param(np, marks=pytest.mark.nightly) for np in (3, 4))])
def test_communicators(np: int) -> None:
    mpirun = [f"{sys.prefix}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    plain = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm", "-np", str(np)]
    done = subprocess.run(
        [*mpirun, *plain, sys.executable, __file__],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":  # under mpirun
    by_communicator()
    twice_by_communicator()
