"""Ranks that join, leave and are renumbered, on living processes: a fake driver assigns places, all else is real.

Terms.
  plan  as in hvdtest/elastic_plans.py
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hvdtest.elastic_plans import Plan, generations, serve, workers
from hvdtest.exact import raises, same
from hvdtest.fake_driver import FakeDriver

pytestmark = pytest.mark.mp

SETTLED_WITHIN_S = 20.0


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with FakeDriver() as driver:
        yield driver


def meets_as_planned(plan: list[dict[str, int]]) -> int:
    """In every generation each collective gives the values of these workers; no value of an earlier one remains."""
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
            raises(hvd.HorovodInternalError, "Horovod has been shut down", hvd.synchronize, handle)
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
        raises(hvd.HorovodInternalError, "Horovod has been shut down", hvd.synchronize, handle)
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
def test_ranks_are_renumbered_by_a_reset(driver: FakeDriver, plan: str, transport: str) -> None:
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


def counts_by_slots(plan: list[dict[str, int]]) -> list[int]:
    """The local ranks of each generation, as Python, the engine and its C table have them."""
    import ctypes

    import numpy as np

    import hvd_kernel.numpy as hvd
    from hvd_kernel import _native
    from hvd_kernel.core import session

    number = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    words = (ctypes.c_void_p * 10).from_address(_native.core_table())  # as native/c_api/hvd_core.h has them
    current = ctypes.CFUNCTYPE(ctypes.c_void_p)(words[2])
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(words[3])
    facts = [number(words[place]) for place in (6, 7, 8, 9)]
    told = []
    for _, ranks in generations(plan):
        session.allow_collectives()
        engine = session.engine()
        found = current()
        of_table = [fact(found) for fact in facts]
        release(found)
        assert of_table == [engine.local_rank, engine.local_size, engine.cross_rank, engine.cross_size]
        assert of_table == [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        assert of_table[1:] == [len(ranks), 0, 1]
        told.append(of_table[0])
        shared = hvd.shared_empty(1000)  # whose parts go by ranks, whatever the slots are
        shared[:] = 1.0 + hvd.rank()
        hvd.allreduce_(shared, name="shared", op=hvd.Sum)
        np.testing.assert_array_equal(shared, np.full(1000, sum(range(1, len(ranks) + 1)), np.float32))
        hvd.barrier()
    hvd.shutdown()
    return told


def test_local_ranks_are_the_slots_in_every_api() -> None:
    """Worker 0, in slot 0, has died: worker 1 is rank 0 and remains local rank 1, for C and TensorFlow as for Python."""
    plan: Plan = [{0: 0, 1: 1}, {1: 0, 2: 1}]
    slots = {0: 0, 1: 1, 2: 0}
    with FakeDriver(slots) as driver, workers(driver, 3) as pool:
        _, told = serve(driver, pool, plan, counts_by_slots, plan)
    assert told == [[0], [1, 1], [0]]


def sets_follow() -> list[Any]:
    """Sets whose members all stay are restored as the same objects, with new ranks; others name the member that left."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import process_sets, session

    me = int(os.environ["WORKER"])
    ends, start = hvd.ProcessSet([0, 3]), hvd.ProcessSet([0, 1])
    joined: list[Any] = []
    if me == 4:  # comes with the second generation, in which the ends have other numbers
        ends, start = hvd.ProcessSet([1, 2]), hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[ends, start])
    if me != 4:
        joined.append([ends.process_set_id, start.process_set_id])
        process_sets.reset_communicator()
    session.allow_collectives()
    assert ends.ranks == [1, 2], f"{ends}"
    assert start.process_set_id is None
    assert ends.included() == (me in {0, 3})
    if ends.included():
        same(hvd.allreduce(torch.tensor([float(me)]), op=hvd.Sum, process_set=ends), torch.tensor([3.0]))
    lost = "The process set of ranks [0, 1] is not registered any more: [1] of them left the job."
    unknown = "Process set provided does not exist, or has not been registered."
    raises(ValueError, unknown if me == 4 else lost, hvd.allreduce, torch.ones(1), process_set=start)
    joined.append([ends.process_set_id])
    hvd.barrier()
    hvd.shutdown()
    return joined


def test_process_sets_follow_their_members(driver: FakeDriver) -> None:
    def leave() -> FakeDriver:
        driver.serve([{0: 0, 1: 1, 2: 2, 3: 3}, {2: 0, 0: 1, 3: 2, 4: 3}])
        return driver

    with workers(driver, 5) as pool, ThreadPoolExecutor(1) as executor:
        served = executor.submit(leave)
        found = pool.run(sets_follow_or_leaves)
        served.result()
    assert found == [[[1, 2], [1]], "left", [[1, 2], [1]], [[1, 2], [1]], [[1]]]


def sets_follow_or_leaves() -> Any:
    try:
        return sets_follow()
    except SystemExit:
        return "left"


def recorded(plan: list[dict[str, int]]) -> None:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    for number, ranks in generations(plan):
        session.allow_collectives()
        hvd.allreduce(torch.ones(len(ranks)), name=f"in {number}")
        hvd.barrier()


@pytest.mark.nightly
def test_timeline_continues_in_its_file_and_marks_the_resets(driver: FakeDriver, tmp_path: Path) -> None:
    """Rank 0, which writes it, is another process each time."""
    plan: Plan = [{0: 0, 1: 1, 2: 2}, {1: 0, 0: 1, 2: 2}, {2: 0, 1: 1}]
    file = tmp_path / "timeline.json"
    with workers(driver, 3, HOROVOD_TIMELINE=str(file), HOROVOD_AUTOTUNE="1") as pool:
        serve(driver, pool, plan, recorded, plan)
    events = json.loads(file.read_text())
    assert [event["args"] for event in events if event.get("name") == "RESET"] == [{"ranks": 3}, {"ranks": 2}]
    rows = [event["args"]["name"] for event in events if event.get("name") == "process_name"]
    assert [row for row in rows if "in " in row] == [f"allreduce.in {number}" for number in (1, 2, 3)]
    numbers = [event["pid"] for event in events if event.get("name") == "process_name"]
    assert len(set(numbers)) == len(numbers)


def resets_over_and_over(count: int) -> dict[str, Any]:
    """Return the resources of this process before and after; ranks are renumbered each time."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import process_sets, session

    def load() -> dict[str, int]:
        shared = [
            one for one in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in one or "/dev/shm" in one
        ]
        kinds = {kind: len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")}
        return {**kinds, "shared": len(shared)}

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def work() -> None:
        total = hvd.allreduce(torch.full((1000,), 1.0), name="x", op=hvd.Sum)
        assert float(total[0]) == hvd.size()
        assert mine.included() == (os.environ["WORKER"] == "0"), "it follows its member"

    hvd.init(process_sets="dynamic")
    mine = hvd.add_process_set([0])
    work()
    before, rss = {}, 0
    for number in range(count + 20):
        if number == 20:
            before, rss = load(), resident()
            hvd.barrier()  # a peer that leaves first is not watched any more: no rank leaves before all have checked
        process_sets.reset_communicator()
        work()
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while load() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that was joined, and what it had, may be listed for a moment longer
    after, grown, generations_of_this = load(), resident() - rss, session.generation()
    hvd.barrier()
    hvd.shutdown()
    return {"before": before, "after": after, "grown": grown, "generations": generations_of_this}


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.nightly)])
def test_resets_leak_nothing(driver: FakeDriver, count: int) -> None:
    plan = [{0: number % 2, 1: 1 - number % 2} for number in range(count + 21)]
    with workers(driver, 2) as pool:
        _, found = serve(driver, pool, plan, resets_over_and_over, count, timeout=600)
    for one in found:
        assert one["generations"] == count + 21
        assert one["before"] == one["after"], one
        assert one["grown"] < (4 << 20), "memory stays"
