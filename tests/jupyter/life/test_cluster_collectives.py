"""Collectives in cells: the effect of an exception, an interrupt or a death on the other ranks, and on the next cell."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hvdtest.cluster import PATIENCE_S, Outcome, drain, execute, until, wait_until_all_speak
from hvdtest.gate import Gate

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import MetricsSample

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(3)]

RELEASED_S = 30.0
"""Milliseconds on a machine that is not busy, see faults/figures.py; without a release ranks would wait forever."""
REDUCE = "import torch\nhvd.allreduce(torch.full((3,), float(rank + 1)), name='x', op=hvd.Sum).tolist()"


def assert_sound(session: Session) -> None:
    assert execute(session, REDUCE).run.values() == dict.fromkeys(range(3), [6.0] * 3)


def test_allreduce(session: Session) -> None:
    assert_sound(session)


@pytest.mark.parametrize("failing", [0, 2])
def test_exception_releases_the_peers_and_the_next_cell_works(session: Session, failing: int) -> None:
    execute(session, "kept = [rank] * 3")
    code = (
        f"import torch\nif rank == {failing}:\n    raise ValueError('mine')\nhvd.allreduce(torch.ones(8), name='never')"
    )
    outcome = execute(session, code, cell=7)
    failures = outcome.failures
    assert (failures[failing].ename, failures[failing].evalue, failures[failing].secondary) == (
        "ValueError",
        "mine",
        False,
    )
    for rank in set(range(3)) - {failing}:
        assert (failures[rank].ename, failures[rank].secondary) == ("RankFailed", True)
        assert failures[rank].evalue == f"Rank {failing} failed: ValueError: mine"
        assert 0 <= failures[rank].time - failures[failing].time < RELEASED_S
    assert_sound(session)
    assert session.pull(["kept"]) == {rank: {"kept": [rank] * 3} for rank in range(3)}


@pytest.mark.nightly
def test_cells_work_after_each_of_twenty_failures(session: Session) -> None:
    for turn in range(20):
        outcome = execute(session, f"1 / (rank - {turn % 3})\nhvd.barrier()")
        assert outcome.failures[turn % 3].ename == "ZeroDivisionError"
        assert_sound(session)


def test_interrupt_inside_a_collective(session: Session) -> None:
    code = "import torch\nprint('in', flush=True)\nif rank:\n    hvd.allreduce(torch.ones(4), name='lonely')\nelse:\n    import time; time.sleep(600)"
    run = session.run(code)
    wait_until_all_speak(run)
    session.interrupt()
    outcome = drain(run)
    assert outcome.failures[0].ename == "KeyboardInterrupt"
    assert {outcome.failures[rank].ename for rank in (1, 2)} <= {"KeyboardInterrupt", "RankFailed"}
    assert_sound(session)


def test_metrics_while_the_main_thread_waits_in_a_collective(session: Session, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        run = session.run(f"import torch\nif rank == 0:\n    {gate.hold}\nhvd.allreduce(torch.ones(4), name='late')")
        seen, end = Outcome(run), time.monotonic() + PATIENCE_S
        while any(len(waiting(seen, rank)) < 3 for rank in (1, 2)):
            assert time.monotonic() < end, seen.samples
            seen.events += filter(None, [run.next(1)])
    assert {sample.waiting_for for rank in (1, 2) for sample in waiting(seen, rank)} == {"allreduce.late"}
    assert waiting(seen, 0) == [], "it was late"
    assert not drain(run).failures


def waiting(outcome: Outcome, rank: int) -> list[MetricsSample]:
    return [sample for sample in outcome.samples if sample.rank == rank and sample.state == "collective"]


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


def test_dead_rank(session: Session) -> None:
    assert_sound(session)
    execute(session, "kept = rank")
    run = session.run("print('in', flush=True)\nhvd.barrier() if rank != 1 else __import__('time').sleep(600)")
    wait_until_all_speak(run)
    pid = session.status()[1].pid
    os.kill(pid, signal.SIGKILL)
    outcome = drain(run)
    assert (outcome.failures[1].ename, outcome.failures[1].secondary) == ("RankDied", False)
    assert f"rank 1 (process {pid}" in outcome.failures[1].evalue
    for rank in (0, 2):
        assert (outcome.failures[rank].ename, outcome.failures[rank].secondary) == ("RankDied", True)
    assert session.dead == (1,)
    assert [status.alive for status in session.status()] == [True, False, True]
    with pytest.raises(ClusterError, match=r"rank 1 \(killed \(SIGKILL\)\) is dead.*%hvd respawn.*%hvd restart"):
        session.run("1")
    assert session.pull(["kept"]) == {0: {"kept": 0}, 2: {"kept": 2}}


def test_rank_that_exits_voluntarily(session: Session) -> None:
    outcome = execute(session, "import os\nif rank == 0: os._exit(3)\nhvd.barrier()")
    assert {rank: f.ename for rank, f in outcome.failures.items()} == dict.fromkeys(range(3), "RankDied")
    assert session.dead == (0,)


def test_cell_sent_to_a_rank_reported_dead_ends(session: Session) -> None:
    """The check for dead ranks and the message to the ranks are not atomic."""
    os.kill(session.status()[1].pid, signal.SIGKILL)
    until(lambda: session.status()[1].why, "the death is told")
    session.ranks.dead.discard(1)
    run = session.run("rank")
    session.ranks.dead.add(1)
    outcome = drain(run)
    assert {rank: f.ename for rank, f in outcome.failures.items()} == {1: "RankDied"}
    assert outcome.results() == {0: "0", 2: "2"}


def test_idle_rank_that_dies_is_listed(session: Session) -> None:
    os.kill(session.status()[2].pid, signal.SIGKILL)
    until(lambda: session.dead == (2,), "the death is noticed")
