"""Ranks that come, go and get other numbers, on living processes: a fake driver gives the places, all else is real.

Words.
  plan  the generations of a job: of each the ranks of its workers
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.fake_driver import FakeDriver
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp

Plan = Sequence[Mapping[int, int]]


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with FakeDriver() as driver:
        yield driver


def workers(driver: FakeDriver, count: int, transport: str = "shm", **env: str) -> RankPool:
    """Processes that wait, as soon as they call init, until the driver has a place for them."""
    return RankPool(count, transport, lambda worker, *_: driver.variables(worker) | {"WORKER": str(worker)}, **env)


def serve(driver: FakeDriver, pool: RankPool, plan: Plan, check: Any, *args: Any, **gone: Any) -> tuple[Any, list[Any]]:
    with ThreadPoolExecutor(1) as executor:
        said = executor.submit(driver.serve, plan)
        found = pool.run(check, *args, **gone)
        return said.result(), found


def generations(plan: list[dict[str, int]]) -> Iterator[tuple[int, dict[int, int]]]:
    """What a worker does in the plan: it comes to each of its generations, until it is removed."""
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import process_sets

    me, has_met = int(os.environ["WORKER"]), False
    for number, words in enumerate(plan, 1):
        ranks = {int(worker): rank for worker, rank in words.items()}
        if me in ranks:
            process_sets.reset_communicator() if has_met else hvd.init(process_sets="dynamic")
            has_met = True
            yield number, ranks
        elif has_met:
            error = raises(SystemExit, "0", process_sets.reset_communicator)
            assert error.code == 0
            assert not hvd.is_initialized()
            return


def meets_as_planned(plan: list[dict[str, int]]) -> int:
    """In every generation each collective gives what these workers bring; nothing of an earlier one is left in it."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    met = 0
    me = float(os.environ["WORKER"])
    late: list[Any] = []
    for number, ranks in generations(plan):
        session.allow_collectives()
        met += 1
        rank, size = ranks[int(me)], len(ranks)
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
        said = [os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "ELASTIC")]
        assert [*said, os.environ["HVD_GENERATION"]] == [str(rank), str(size), "1", str(number)]
        order = [float(worker) for worker, _ in sorted(ranks.items(), key=lambda item: item[1])]
        for handle in late:
            raises(hvd.HorovodInternalError, "", hvd.synchronize, handle)
        for _ in range(3):  # the third time the response cache answers
            same(hvd.allreduce(torch.full((5,), me), name="x", op=hvd.Sum), torch.full((5,), sum(order)))
            same(hvd.allgather(torch.tensor([me]), name="y"), torch.tensor(order))
            same(hvd.broadcast(torch.tensor([me]), size - 1, name="z"), torch.tensor([order[-1]]))
            got = hvd.grouped_allreduce([torch.full((2,), me), torch.full((3,), me)], name="g", op=hvd.Max)
            same(got[1], torch.full((3,), max(order)))
        if size > 1:
            mine = hvd.alltoall(torch.full((size,), me), name="a")
            same(mine, torch.tensor(order))
        hvd.barrier()
        late = [hvd.allreduce_async(torch.ones(1), name="late")] if rank == 0 and size > 1 else []
        hvd.allreduce(torch.ones(1), name="last")
    hvd.shutdown()
    for handle in late:
        raises(hvd.HorovodInternalError, "", hvd.synchronize, handle)
    return met


PLANS: dict[str, Plan] = {
    "4-2": [{0: 0, 1: 1, 2: 2, 3: 3}, {3: 0, 1: 1}],
    "2-4": [{0: 0, 1: 1}, {1: 0, 0: 1, 2: 2, 3: 3}],
    "4-5": [{0: 0, 1: 1, 2: 2, 3: 3}, {2: 0, 3: 1, 0: 2, 4: 3, 5: 4}],
    "1-3-1": [{0: 0}, {0: 0, 1: 1, 2: 2}, {2: 0}],
}


@pytest.mark.parametrize(
    ("plan", "transport"),
    [("4-5", "shm"), *(pytest.param(plan, "tcp", marks=pytest.mark.nightly) for plan in PLANS)],
)
def test_ranks_meet_again_by_other_numbers(driver: FakeDriver, plan: str, transport: str) -> None:
    count = 1 + max(worker for ranks in PLANS[plan] for worker in ranks)
    with workers(driver, count, transport) as pool:
        said, met = serve(driver, pool, PLANS[plan], meets_as_planned, PLANS[plan])
    assert met == [sum(worker in ranks for ranks in PLANS[plan]) for worker in range(count)]
    for number, (ready, ranks) in enumerate(zip(said, PLANS[plan], strict=True)):
        assert {worker: one.generation for worker, one in ready.items() if worker in ranks} == {
            worker: number if number and worker in PLANS[plan][number - 1] else 0 for worker in ranks
        }
        assert not any(one.failed for one in ready.values())
        assert len({one.port for one in ready.values()}) == len(ready), "each keeps a port of its own"
