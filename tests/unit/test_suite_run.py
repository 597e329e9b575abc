"""tools/suite, the runner: a test that hangs or ends its process fails alone, is named, and the rest of the folder runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from suite import record, run
from suite.phases import Phase

TESTS = str(Path(__file__).resolve().parents[1])
HANGS = """
import signal, time

def test_before():
    pass

def test_that_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGABRT})
    signal.pause()

def test_after():
    assert 1 + 1 == 3
"""
CRASHES = """
import os, signal

def test_before():
    pass

def test_that_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after():
    pass
"""


def played(tmp_path: Path, source: str, silent: float = 60.0) -> run.Folder:
    (tmp_path / "test_played.py").write_text(source)
    plugins = (
        "-p",
        "hvdtest.record",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:nbval",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    )
    command = (sys.executable, "-P", "-m", "pytest", "-q", *plugins, str(tmp_path))
    (folder,) = run.run(
        [Phase("played", command, pytest=True)],
        tmp_path / "results",
        {"PYTEST_ADDOPTS": "", "PYTHONPATH": TESTS},
        silent,
    )
    return folder


def test_a_hang_fails_one_test_which_is_named_with_who_waits_where(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = played(tmp_path, HANGS, silent=5.0)
    assert (folder.passed, folder.failed) == (1, 2)
    said = capfd.readouterr()
    assert "FAILED test_played.py::test_that_hears_no_signal: hung" in said.out
    assert "state S, waits in" in said.out
    assert "in test_that_hears_no_signal" in said.err, "faulthandler shows where Python stood"


def test_a_crash_fails_one_test_and_the_rest_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = played(tmp_path, CRASHES)
    assert (folder.passed, folder.failed) == (2, 1)
    assert "FAILED test_played.py::test_that_crashes: the process ended by SIGSEGV" in capfd.readouterr().out


def test_a_test_with_a_longer_limit_of_its_own_is_given_that_time(tmp_path: Path) -> None:
    """The wheel that is compiled for all devices was taken for hung: beside other work that takes longer than 420 s."""
    played(
        tmp_path,
        "import pytest\n\n@pytest.mark.timeout(900)\ndef test_long():\n    pass\n\ndef test_short():\n    pass\n",
    )
    lines = record.lines(tmp_path / "results" / "00-played.jsonl")
    long = next(at for at, line in enumerate(lines) if "may_take" in line) + 1
    assert record.patience(lines[:long], 420.0) == 900 + record.MARGIN_S, "it is at work"
    assert record.patience(lines, 420.0) == 420, "it has ended"
    assert record.patience(lines[:long], 2000.0) == 2000


def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    folder = played(tmp_path, "import no_such_module_anywhere")
    assert folder.failed > 0


def test_a_command_that_fails_is_a_failure_of_its_phase(tmp_path: Path) -> None:
    good, bad = run.run([Phase("good", ("true",)), Phase("bad", ("false",))], tmp_path / "results")
    assert (good.failed, bad.failed) == (0, 1)


def test_a_native_room_has_a_line_of_its_own(tmp_path: Path) -> None:
    line = '{"folder": "native/base", "kind": "asan", "tests": 3, "failed": 1, "seconds": 2.5, "slowest": [["a case", 2.0]]}'
    room, whole = run.run(
        [Phase("native/asan", ("bash", "-c", f"echo '{line}' >>$HVDTEST_RECORD"))], tmp_path / "results"
    )
    assert (room.name, room.passed, room.failed, room.seconds) == ("native/base", 2, 1, 2.5)
    assert room.slowest == [("native/base (asan): a case", 2.0)]
    assert (whole.name, whole.failed) == ("native/asan", 0)


def test_the_end_says_what_failed_and_how_many_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run.Folder("unit", 10.0, passed=5), run.Folder("jupyter", 50.0, passed=2, skipped=1)]
    assert run.finish(folders, {"unit": 9.0, "jupyter": 30.0}) == 0
    assert capsys.readouterr().out.endswith("suite: 7 passed, 0 failed, 1 skipped\n")
    assert run.finish(folders, {"unit": 4.0}) == 1
    said = capsys.readouterr().out
    assert "unit took 10 s, more than twice its 4 s" in said
    assert "jupyter has no budget" in said
    assert run.finish([run.Folder("unit", 1.0, passed=1, failed=1)], None) == 1
