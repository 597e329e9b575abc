"""Real ranks that can never go on: they get an error within seconds, keep their variables, and run the next cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import execute
from hvdtest.gate import Gate

from hvd_kernel.cluster import Session

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240)]

REMEDY = "Call each operation on all ranks of its process set, outside of conditions such as `if rank == 0:`"


def assert_next_cell_works(session: Session) -> None:
    total = sum(range(1, session.n + 1))
    outcome = execute(session, "kept, float(hvd.allreduce(torch.tensor(rank + 1.0), op=hvd.Sum))", cell=9)
    assert not outcome.failures
    assert outcome.results() == {rank: f"('kept {rank}', {float(total)})" for rank in range(session.n)}


@pytest.mark.cluster(2)
def test_c4_collective_fails_after_a_rank_ended_without_it(session: Session) -> None:
    cell = "import torch\nkept = f'kept {rank}'\nif rank == 0:\n    hvd.allreduce(torch.ones(2), name='only')"
    outcome = execute(session, cell, cell=3)
    assert set(outcome.failures) == {0}
    assert outcome.failures[0].ename == "Mismatch"
    text = outcome.failures[0].evalue
    assert "rank 0 for ALLREDUCE allreduce.only at cell 3:4; rank 1 has ended the cell. " in text
    assert REMEDY in text
    assert_next_cell_works(session)


@pytest.mark.cluster(4)
def test_c4_collectives_that_wait_for_each_other_fail(session: Session) -> None:
    cell = """import torch
kept = f'kept {rank}'
if rank < 2:
    hvd.allreduce(torch.ones(2), name='a')
else:
    hvd.broadcast(torch.ones(2), 0, name='b')"""
    outcome = execute(session, cell, cell=4)
    assert {rank: failure.ename for rank, failure in outcome.failures.items()} == dict.fromkeys(range(4), "Mismatch")
    for failure in outcome.failures.values():
        for part in (
            "ranks 0, 1 for ALLREDUCE allreduce.a at cell 4:4",
            "ranks 2, 3 for BROADCAST broadcast.b at cell 4:6",
            REMEDY,
        ):
            assert part in failure.evalue
    assert_next_cell_works(session)


@pytest.mark.cluster(2)
def test_c4_join_fails_after_a_rank_ended_without_it(session: Session) -> None:
    cell = "import torch\nkept = f'kept {rank}'\nif rank == 0:\n    hvd.join()"
    outcome = execute(session, cell, cell=3)
    assert {rank: failure.ename for rank, failure in outcome.failures.items()} == {0: "Mismatch"}
    text = outcome.failures[0].evalue
    assert "rank 0 for JOIN join at cell 3:4; rank 1 has ended the cell. " in text
    assert REMEDY in text
    assert_next_cell_works(session)


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_c4_a_deadlock_in_elastic_run_is_tried_twice(session: Session) -> None:
    cell = """import torch
kept, tries = f'kept {rank}', []
@hvd.elastic.run
def train(state):
    tries.append(state.tries)
    if rank == 0:
        hvd.allreduce(torch.ones(2), name='only')
train(hvd.elastic.ObjectState(tries=0))"""
    outcome = execute(session, cell, cell=4)
    assert set(outcome.failures) == {0, 1}
    names = {failure.ename for failure in outcome.failures.values()}
    assert "Mismatch" in names <= {"Mismatch", "RankFailed"}, "a rank's own, or another rank's that was first"
    for failure in outcome.failures.values():
        assert "rank 0 for ALLREDUCE allreduce.only at cell 4:7" in failure.evalue
    assert_next_cell_works(session)
    assert execute(session, "tries").results() == dict.fromkeys(range(2), "[0, 0]")


ARRIVES_LATER = {
    "a thread": "import threading\nthreading.Thread(target=late, daemon=True).start()",
    "a computation": "late()",
}
LONGER = "import time; time.sleep(8)"
"""Longer than ``DEADLOCK_S``, and the pauses between two checks."""


@pytest.mark.nightly
@pytest.mark.cluster(2)
@pytest.mark.parametrize("how", ["a thread", "a computation"])
def test_ranks_that_arrive_late_are_awaited(session: Session, how: str) -> None:
    cell = f"""import torch
total = lambda: float(hvd.allreduce(torch.tensor(rank + 1.0), name="late", op=hvd.Sum))
def late():
    {LONGER}
    totals.append(total())
totals = []
if rank == 0:
    totals.append(total())
else:
    {ARRIVES_LATER[how].replace(chr(10), chr(10) + "    ")}
"""
    outcome = execute(session, cell)
    assert not outcome.failures
    assert execute(session, "import time\nwhile not totals: time.sleep(0.01)\ntotals").results() == {
        0: "[3.0]",
        1: "[3.0]",
    }


@pytest.mark.nightly
@pytest.mark.cluster(3)
def test_ranks_outside_of_the_cell_cause_no_deadlock_error(session: Session, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        run = session.run(f"import torch\n{gate.arrive}\nhvd.barrier()", [0, 1])
        gate.wait_for(0, 1)
        assert not run.wait(8.0)
        session.interrupt()
    while not run.done:
        run.next(0.2)
    assert {failure.ename for failure in run.failures} == {"KeyboardInterrupt"}
