"""Collectives in cells: what an exception, an interrupt or a death of one rank does to the others, and to the next cell."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hvdtest.cluster import cluster, drain, execute, wait_until_all_speak

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]
REDUCE = "import torch\nhvd.allreduce(torch.full((3,), float(rank + 1)), name='x', op=hvd.Sum).tolist()"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with cluster(3) as started:
        yield started


@pytest.fixture
def doomed() -> Iterator[Session]:
    """A cluster that a test may damage."""
    with cluster(3) as started:
        yield started


def assert_sound(session: Session) -> None:
    assert execute(session, REDUCE).run.values() == dict.fromkeys(range(3), [6.0] * 3)


def test_allreduce(session: Session) -> None:
    assert_sound(session)


@pytest.mark.parametrize("guilty", [0, 2])
def test_exception_releases_the_peers_and_the_next_cell_works(session: Session, guilty: int) -> None:
    execute(session, "kept = [rank] * 3")
    code = (
        f"import torch\nif rank == {guilty}:\n    raise ValueError('mine')\nhvd.allreduce(torch.ones(8), name='never')"
    )
    outcome = execute(session, code, cell=7)
    assert outcome.seconds < 2.0
    failures = outcome.failures
    assert (failures[guilty].ename, failures[guilty].evalue, failures[guilty].secondary) == (
        "ValueError",
        "mine",
        False,
    )
    for rank in set(range(3)) - {guilty}:
        assert (failures[rank].ename, failures[rank].secondary) == ("RankFailed", True)
        assert failures[rank].evalue == f"Rank {guilty} failed: ValueError: mine"
        assert 0 <= failures[rank].time - failures[guilty].time < 0.25
    assert_sound(session)
    assert session.pull(["kept"]) == {rank: {"kept": [rank] * 3} for rank in range(3)}


def test_twenty_failures_in_a_row_heal(session: Session) -> None:
    for turn in range(20):
        outcome = execute(session, f"1 / (rank - {turn % 3})\nhvd.barrier()")
        assert outcome.failures[turn % 3].ename == "ZeroDivisionError"
        assert_sound(session)


def test_interrupt_inside_a_collective(session: Session) -> None:
    code = "import torch\nprint('in', flush=True)\nif rank:\n    hvd.allreduce(torch.ones(4), name='lonely')\nelse:\n    import time; time.sleep(60)"
    run = session.run(code)
    wait_until_all_speak(run)
    session.interrupt()
    outcome = drain(run, patience=3)
    assert outcome.seconds < 2.0
    assert outcome.failures[0].ename == "KeyboardInterrupt"
    assert {outcome.failures[rank].ename for rank in (1, 2)} <= {"KeyboardInterrupt", "RankFailed"}
    assert_sound(session)


def test_metrics_while_the_main_thread_waits_in_a_collective(session: Session) -> None:
    code = "import time, torch\nif rank == 0:\n    time.sleep(1.2)\nhvd.allreduce(torch.ones(4), name='late')"
    outcome = execute(session, code)
    assert not outcome.failures
    for rank in (1, 2):
        waiting = [s for s in outcome.samples if s.rank == rank and s.state == "collective"]
        assert len(waiting) >= 3
        assert {s.waiting_for for s in waiting} == {"allreduce.late"}
    assert all(s.state != "collective" for s in outcome.samples if s.rank == 0)


def test_metrics_count_bytes_and_logged_values(session: Session) -> None:
    outcome = execute(session, "import torch\nhvd.log(loss=0.5 + rank)\nhvd.allreduce(torch.ones(1000), name='k')\n0")
    for rank in range(3):
        last = session.metrics[rank]
        assert last.logged == {"loss": 0.5 + rank}
        assert last.ops > 0
        assert last.bytes >= 4000
        assert last.state == "idle"
    assert not outcome.failures


def test_user_may_shut_down_and_initialise_again(session: Session) -> None:
    assert not execute(session, "hvd.shutdown()").failures
    assert execute(session, "hvd.is_initialized()").run.values() == dict.fromkeys(range(3), False)
    assert not execute(session, "hvd.init()").failures
    assert_sound(session)


def test_dead_rank(doomed: Session) -> None:
    assert_sound(doomed)
    execute(doomed, "kept = rank")
    run = doomed.run("hvd.barrier() if rank != 1 else __import__('time').sleep(60)")
    time.sleep(0.3)
    pid = doomed.status()[1].pid
    os.kill(pid, signal.SIGKILL)
    outcome = drain(run, patience=5)
    assert outcome.seconds < 2.0
    assert (outcome.failures[1].ename, outcome.failures[1].secondary) == ("RankDied", False)
    assert f"rank 1 (process {pid}" in outcome.failures[1].evalue
    for rank in (0, 2):
        assert (outcome.failures[rank].ename, outcome.failures[rank].secondary) == ("RankDied", True)
    assert doomed.dead == (1,)
    assert [status.alive for status in doomed.status()] == [True, False, True]
    with pytest.raises(ClusterError, match=r"rank 1 \(killed \(SIGKILL\)\) is dead.*%hvd respawn.*%hvd restart"):
        doomed.run("1")
    assert doomed.pull(["kept"]) == {0: {"kept": 0}, 2: {"kept": 2}}


def test_rank_that_exits_by_itself(doomed: Session) -> None:
    outcome = execute(doomed, "import os\nif rank == 0: os._exit(3)\nhvd.barrier()")
    assert {rank: f.ename for rank, f in outcome.failures.items()} == dict.fromkeys(range(3), "RankDied")
    assert doomed.dead == (0,)


def test_idle_rank_that_dies_is_listed_at_once(doomed: Session) -> None:
    os.kill(doomed.status()[2].pid, signal.SIGKILL)
    deadline = time.monotonic() + 0.3
    while doomed.dead != (2,):
        assert time.monotonic() < deadline
        time.sleep(0.005)
