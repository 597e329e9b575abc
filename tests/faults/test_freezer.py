"""A cluster that is suspended as a whole, as with its machine: no rank is declared dead, the cell continues (F8).

The policy itself is tested in virtual time, in tests/native/transport/watch/test_stop_detector.cc; this is its smoke test in real time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hvdtest.cluster import cluster, drain, execute, living, processes_below, until
from hvdtest.gate import Gate

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.nightly]

FREEZER = Path("/sys/fs/cgroup/freezer")
POLICY_S = 8  # after so long a rank that is stopped alone would be given up: one by one takes less on a busy machine
STANDSTILL_S = POLICY_S + 1.5

SUMS = """
import torch
{gate.arrive}
rounds, last = 0, 0.0
while not last:
    told = torch.tensor([1.0, float(rank == 0 and {gate.is_open})])
    size, last = hvd.allreduce(told, op=hvd.Sum, name="sum").tolist()
    assert size == hvd.size()
    rounds += 1
rounds
"""


@contextmanager
def stopped(pids: set[int]) -> Iterator[None]:
    """Every process by a signal."""
    for pid in sorted(pids):
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in sorted(pids):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pids: set[int]) -> Iterator[None]:
    """All of them at once, by the freezer."""
    group = FREEZER / f"hvd-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer: {error}")
    state = group / "freezer.state"
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        until(lambda: state.read_text() == "FROZEN\n", "everybody is frozen")
        yield
    finally:
        state.write_text("THAWED")
        for pid in (group / "cgroup.procs").read_text().split():
            (FREEZER / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.parametrize("standstill", [stopped, frozen])
def test_f8_suspended_cluster_continues(
    standstill: Callable[[set[int]], AbstractContextManager[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_STOP_ABORT", str(POLICY_S))
    with cluster(3) as session:
        pids = living({session.supervisor} | processes_below(session.supervisor))
        with Gate(tmp_path) as gate:
            run = session.run(SUMS.format(gate=gate))
            gate.wait_for(0, 1, 2)
            with standstill(pids):
                time.sleep(STANDSTILL_S)  # the fault itself
        outcome = drain(run)
        assert outcome.failures == {}
        rounds = outcome.results()
        assert set(rounds) == {0, 1, 2}
        assert len(set(rounds.values())) == 1
        assert living(pids) == pids
        again = execute(session, "import torch; hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, name='x').item()")
        assert again.results() == dict.fromkeys(range(3), "3")
