"""The exit report: how a job and its ranks ended, as JSON."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.launch import exit_report
from hvd_kernel.launch.cancellation import JobCancelled, Signalled, cancelled_text
from hvd_kernel.launch.exit_report import RankExit, missing_folder_text, now, recorded, signal_name, unwritten_text
from hvd_kernel.launch.outcome import Outcome

TIME = "2026-11-30T16:20:00.123456+00:00"
FAILED = RankExit(1, "n2", 71, 3, TIME)
KILLED = RankExit(0, "n1", 70, -9, TIME, "killed for memory: 2 GiB of its limit of 1 GiB")
FIELDS = {"version", "outcome", "status", "message", "begin", "end", "first_cause", "ranks", "lost_output_bytes"}


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_report, "now", lambda: TIME)


def ended_by(error: BaseException, path: Path) -> None:
    with recorded(str(path)) as job:
        job.ranks = lambda: [KILLED]
        raise error


def report(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    assert set(read) == FIELDS
    return read


def test_a_job_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    with recorded(str(path)) as job:
        job.ranks = lambda: [KILLED, FAILED]
        job.first_cause = FAILED
        job.outcome = Outcome((-9, 3), 1, ("Traceback", "ValueError: my bug"), 3)
        job.loss.record("stdout", 7, OSError(28, "No space left on device"))
    failed = {"rank": 1, "host": "n2", "pid": 71, "time": TIME, "reason": "", "is_consequence": False}
    failed |= {"status": 3, "signal": None}
    killed = {"rank": 0, "host": "n1", "pid": 70, "time": TIME, "reason": KILLED.reason, "is_consequence": False}
    killed |= {"status": None, "signal": "SIGKILL"}
    assert report(path) == {
        "version": 1,
        "outcome": "failed",
        "status": 3,
        "message": "exit status 3",
        "begin": TIME,
        "end": TIME,
        "first_cause": failed | {"last_lines": ["Traceback", "ValueError: my bug"]},
        "ranks": [killed, failed],
        "lost_output_bytes": {"stdout": 7},
    }


def test_a_job_that_succeeded(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    with recorded(str(path)) as job:
        job.outcome = Outcome((0,))
    read = report(path)
    assert (read["outcome"], read["status"], read["message"], read["first_cause"]) == ("succeeded", 0, "", None)


@pytest.mark.parametrize(
    ("error", "kind", "status", "message"),
    [
        (JobCancelled(signal.SIGTERM, "cancelled"), "cancelled", 143, "cancelled"),
        (Signalled(signal.SIGHUP), "cancelled", 129, cancelled_text(signal.SIGHUP, has_ranks=False)),
        (KeyboardInterrupt(), "cancelled", 130, "interrupted"),
        (ClusterError("host n2 was lost"), "failed", 1, "host n2 was lost"),
        (ConfigError("no host"), "failed", 2, "no host"),
    ],
)
def test_a_job_that_an_error_ends(tmp_path: Path, error: BaseException, kind: str, status: int, message: str) -> None:
    path = tmp_path / "exit.json"
    with pytest.raises(type(error)):
        ended_by(error, path)
    read = report(path)
    assert (read["outcome"], read["status"], read["message"]) == (kind, status, message)
    assert [rank["signal"] for rank in read["ranks"]] == ["SIGKILL"]


def test_a_missing_folder_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "exit.json")
    with pytest.raises(ConfigError) as raised, recorded(path):
        pytest.fail("the job has started")
    assert str(raised.value) == missing_folder_text(path)


def test_a_report_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with recorded("/dev/full") as job:
        job.outcome = Outcome((0,))
    assert capsys.readouterr().err == unwritten_text("/dev/full", OSError(28, "No space left on device"))


def test_time_is_utc_and_signals_have_names() -> None:
    moment = datetime.fromisoformat(now())
    assert moment.tzinfo is not None
    assert moment.utcoffset() == datetime.fromisoformat(TIME).utcoffset()
    assert [signal_name(number) for number in (9, 15, 40)] == ["SIGKILL", "SIGTERM", "SIG40"]
