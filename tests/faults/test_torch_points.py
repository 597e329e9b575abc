"""DDP and FSDP2 on backend "hvd": a rank is killed, raises, is interrupted or stopped at points that a seed draws.

At every point: no rank hangs, the cell or job reports the true error, the next cell works, and no process is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import Outcome, cluster, drain, execute, until
from hvdtest.hvdrun import HVDRUN, gone, processes_with
from hvdtest.launch import TESTS, clean_environment
from hvdtest.torch_points import FAULTS, Point, drawn

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.errors import without_future
from hvd_kernel.magics.display.user_errors import by_cause
from hvd_kernel.protocol.messages import Failure, RankDone

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(580)]

STOP_ABORT_S = 1
JOB_S = 120  # for ranks to import torch, and for the job to end after its fault, on a busy machine
PIPES: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
END_S = 30 * STOP_ABORT_S  # for a cell or job to end after its fault, on a busy machine
POINTS = 20
SETUP = "from hvdtest import torch_points"
OF_OTHERS = {"kill": "RankDied", "raise": "RankFailed", "stop": "RankStalled"}


@contextmanager
def ranks(n: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Start ranks that end their wait for a stopped rank early; nothing of them may be left."""
    monkeypatch.setenv("HVD_STOP_ABORT", str(STOP_ABORT_S))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    with cluster(n) as session:
        yield session


def works(session: Session, model: str, *, fresh: bool) -> str:
    """Check the sum in the next cell; return the digest of a training in it, equal on all ranks."""
    done = execute(session, f"{SETUP}\ntorch_points.works({model!r}, fresh={fresh})")
    assert not done.failures, list(done.failures.values())
    values: dict[int, Any] = done.run.values()
    total = session.n * (session.n + 1) / 2
    assert [values[rank][:2] for rank in range(session.n)] == [[total, "HvdProcessGroup"]] * session.n
    (digest,) = {value[2] for value in values.values()}
    return str(digest)


def until_only(run: CellExecution, victim: int) -> None:
    """Return when all ranks except the victim have ended the cell."""
    running = set(run.ranks)

    def others_ended() -> bool:
        while (event := run.next(0.01)) is not None:
            if isinstance(event, RankDone):
                running.discard(event.rank)
        return running <= {victim}

    until(others_ended, f"ranks {running - {victim}} end the cell", END_S)


def ended(session: Session, point: Point, folder: Path, *, resume: bool) -> Outcome:
    """Run a cell that fails at the point, to its end; a stopped rank is resumed or replaced."""
    run = session.run(f"{SETUP}\ntorch_points.fail({vars(point)!r}, {str(folder)!r})")
    if point.fault in {"interrupt", "stop"}:
        until(point.file(str(folder)).exists, "the point is reached", END_S)
    if point.fault == "interrupt":
        session.interrupt()
    if point.fault == "stop":
        until_only(run, point.victim)
        if resume:
            os.kill(session.status()[point.victim].pid, signal.SIGCONT)
        else:
            assert session.respawn([point.victim], force=True).ranks == (point.victim,)
    return drain(run, END_S)


def check_errors(point: Point, n: int, failures: dict[int, Failure], *, resume: bool) -> None:
    """Check the error of each rank, and the cell's."""
    assert set(failures) == set(range(n)), failures
    cause = by_cause(list(failures.values()))[0]
    victim = failures[point.victim]
    if point.fault == "interrupt":
        assert {failure.ename for failure in failures.values()} == {"KeyboardInterrupt"}, failures
        return
    if point.fault == "raise":
        assert (victim.ename, victim.evalue) == ("Injected", point.message)
    elif point.fault == "kill" or not resume:
        assert victim.ename == "RankDied"
        assert "killed (SIGKILL)" in victim.evalue
    expected = OF_OTHERS[point.fault]
    for failure in failures.values():
        if failure is victim and (point.fault != "stop" or not resume):
            assert cause is victim
        else:
            assert failure.secondary, failure
            in_future = type(without_future(RuntimeError(failure.evalue))).__name__
            assert failure.ename == expected or (failure.ename, in_future) == ("RuntimeError", expected), failure
            assert f"ank {point.victim}" in failure.evalue or failure is victim, failure


def try_points(session: Session, points: list[Point], folder: Path) -> None:
    """Fail at each point, and check what follows."""
    digests = {model: works(session, model, fresh=True) for model in {point.model for point in points}}
    for point in points:
        resume = point.number % 16 < 2 * len(FAULTS)
        try:
            outcome = ended(session, point, folder, resume=resume)
            check_errors(point, session.n, outcome.failures, resume=resume)
            if session.dead:
                assert session.dead == (point.victim,)
                session.respawn()
            replaced = point.fault == "kill" or (point.fault == "stop" and not resume)
            assert works(session, point.model, fresh=replaced or point.number % 3 == 0) == digests[point.model]
        except AssertionError as error:
            error.add_note(str(point))
            raise
        sys.stdout.write(f"{point}: {outcome.seconds:.1f} s\n")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [2, 3])
def test_random_points_in_cells(n: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(n, monkeypatch) as session:
        try_points(session, drawn(seed, n, POINTS), tmp_path)


@pytest.mark.nightly
def test_a1_a9_a10_b1_one_point_of_each_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(2, monkeypatch) as session:
        try_points(session, drawn(1, 2, len(FAULTS)), tmp_path)


PROGRAM = [sys.executable, "-P", "-c", "from hvdtest import torch_points; torch_points.script()"]
CAUSES = {
    "kill": "hvdrun: rank {victim} died: killed (SIGKILL);",
    "raise": "hvdrun: rank {victim} failed (exit status 1);",
}
STATUS = {"kill": 128 + signal.SIGKILL, "raise": 1, "interrupt": 128 + signal.SIGINT, "stop": 1}


def try_point_of_job(point: Point, n: int, folder: Path) -> None:
    """Fail at the point in a program under hvdrun, and check status, last line and error."""
    words = ["-np", str(n), "--", *PROGRAM, json.dumps(vars(point)), str(folder)]
    env = clean_environment(HVD_STOP_ABORT=str(STOP_ABORT_S), PYTHONPATH=str(TESTS))
    with subprocess.Popen([*HVDRUN, *words], env=env, stdin=subprocess.DEVNULL, **PIPES) as job:
        try:
            if point.fault == "interrupt":
                until(lambda: point.file(str(folder)).exists() or job.poll() is not None, "the point is reached", JOB_S)
                job.send_signal(signal.SIGINT)
            _, errors = job.communicate(timeout=JOB_S)
        finally:
            job.kill()
    assert job.returncode == STATUS[point.fault], errors
    if point.fault in CAUSES:
        assert errors.splitlines()[-1].startswith(CAUSES[point.fault].format(victim=point.victim)), errors
    if point.fault == "raise":
        assert f"Injected: {point.message}" in errors
    if point.fault == "stop":
        assert f"rank {point.victim}" in errors
        assert "is stopped (SIGSTOP or a debugger)" in errors


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [2, 3])
def test_random_points_in_jobs(n: int, seed: int, mark: str, tmp_path: Path) -> None:
    for point in drawn(seed, n, POINTS):
        try:
            try_point_of_job(point, n, tmp_path)
            assert gone(mark), processes_with(mark)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            error.add_note(str(point))
            raise
