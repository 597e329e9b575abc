"""tools/suite, the runner: a test that hangs or ends its process fails alone, is named, and the rest of the folder runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from suite import budget, record, run
from suite.phases import Phase

TESTS = str(Path(__file__).resolve().parents[2])
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


MEETS = """
import pathlib, time

def test_meets():
    print("begins")
    here, there = (pathlib.Path(FOLDER, name) for name in (OWN, OTHER))
    here.touch()
    while not there.exists():
        time.sleep(0.01)
"""
INTERRUPTED = """
import sys
from pathlib import Path
from suite import run
from suite.phases import Phase

run.run([Phase(name, (sys.executable, "-c", STAYS), pytest=True, beside=True) for name in ("a", "b", "c")], Path("."))
"""
STAYS = """
import os, pathlib, time
pathlib.Path(FOLDER, str(os.getpid()) + ".up").touch()
time.sleep(1000)
"""


def phase_of(folder: Path, source: str, name: str = "played", *, beside: bool = False) -> Phase:
    folder.mkdir(exist_ok=True)
    (folder / f"test_{name}.py").write_text(source)
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
        str(folder),
    )
    command = (sys.executable, "-P", "-m", "pytest", "-q", *plugins, str(folder))
    return Phase(name, command, pytest=True, beside=beside)


def ran(phases: list[Phase], tmp_path: Path, silent: float = 60.0) -> list[run.Folder]:
    return run.run(phases, tmp_path / "results", {"PYTEST_ADDOPTS": "", "PYTHONPATH": TESTS}, silent)


def played(tmp_path: Path, source: str, silent: float = 60.0) -> run.Folder:
    (folder,) = ran([phase_of(tmp_path, source)], tmp_path, silent)
    return folder


def test_light_folders_run_two_at_a_time_with_separate_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("one", "two")
    phases = [
        phase_of(tmp_path / own, f"FOLDER, OWN, OTHER = {(str(tmp_path), own, other)!r}\n{MEETS}", own, beside=True)
        for own, other in zip(names, reversed(names), strict=True)
    ]
    folders = ran([*phases, Phase("alone", ("echo", "first"))], tmp_path)
    assert [(folder.name, folder.passed, folder.failed) for folder in folders] == [
        ("one", 1, 0),
        ("two", 1, 0),
        ("alone", 0, 0),
    ]
    said = capfd.readouterr().out
    assert said.index("=== alone: echo first\nfirst\n") < said.index("=== one begins"), "by itself, before the others"
    blocks = [block for block in said.split("\n=== ") if block.startswith(("one: ", "two: "))]
    assert sorted(block[:3] for block in blocks) == sorted(names)
    assert all("\n1 passed in" in block for block in blocks)


def test_interrupt_ends_running_folders_and_starts_no_other(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(run.__file__).resolve().parents[1])}
    stays = f"FOLDER = {str(tmp_path)!r}\n{STAYS}"
    command = (sys.executable, "-P", "-c", f"STAYS = {stays!r}\n{INTERRUPTED}")
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while len(up := [*tmp_path.glob("*.up")]) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert len(up) == 2
    assert not [file for file in up if Path(f"/proc/{file.stem}").exists()]


def test_hang_fails_one_test_with_the_stacks_of_its_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = phase_of(tmp_path / "good", "def test_good():\n    pass\n", "good", beside=True)
    bad = phase_of(tmp_path / "bad", HANGS, "bad", beside=True)
    assert [(folder.passed, folder.failed) for folder in ran([bad, good], tmp_path, silent=5.0)] == [(1, 2), (1, 0)]
    said = capfd.readouterr().out
    assert "FAILED test_bad.py::test_that_hears_no_signal: hung" in said
    assert "state S, waits in" in said
    assert "in test_that_hears_no_signal" in said, "faulthandler shows where Python stood"


def test_a_crash_fails_one_test_and_the_rest_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = played(tmp_path, CRASHES)
    assert (folder.passed, folder.failed) == (2, 1)
    assert "FAILED test_played.py::test_that_crashes: the process ended by SIGSEGV" in capfd.readouterr().out


def test_test_with_its_own_longer_limit_gets_that_time(tmp_path: Path) -> None:
    """The wheel compiled for all devices was reported as hung: on a busy machine that takes longer than 420 s."""
    played(
        tmp_path,
        "import pytest\n\n@pytest.mark.timeout(900)\ndef test_long():\n    pass\n\ndef test_short():\n    pass\n",
    )
    lines = record.lines(tmp_path / "results" / "00-played.jsonl")
    long = next(at for at, line in enumerate(lines) if "may_take" in line) + 1
    assert record.patience(lines[:long], 420.0) == 900 + record.MARGIN_S, "it is at work"
    assert record.patience(lines, 420.0) == 420, "it has ended"
    assert record.patience(lines[:long], 2000.0) == 2000


def test_unimportable_file_is_a_failure(tmp_path: Path) -> None:
    folder = played(tmp_path, "import no_such_module_anywhere")
    assert folder.failed > 0


def test_a_command_that_fails_is_a_failure_of_its_phase(tmp_path: Path) -> None:
    good, bad = run.run([Phase("good", ("true",)), Phase("bad", ("false",))], tmp_path / "results")
    assert (good.failed, bad.failed) == (0, 1)


def test_native_folder_has_its_own_line(tmp_path: Path) -> None:
    line = '{"folder": "native/base", "kind": "asan", "tests": 3, "failed": 1, "seconds": 2.5, "slowest": [["a case", 2.0]]}'
    room, whole = run.run(
        [Phase("native/asan", ("bash", "-c", f"echo '{line}' >>$HVDTEST_RECORD"))], tmp_path / "results"
    )
    assert (room.name, room.passed, room.failed, room.seconds) == ("native/base", 2, 1, 2.5)
    assert room.slowest == [("native/base (asan): a case", 2.0)]
    assert (whole.name, whole.failed) == ("native/asan", 0)


def test_summary_lists_failures_and_counts_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run.Folder("unit", 10.0, passed=5), run.Folder("jupyter", 50.0, passed=2, skipped=1)]
    alike = partial(run.finish, measured=lambda: budget.REFERENCE_S)
    assert alike(folders, {"unit": 9.0, "jupyter": 30.0}) == 0
    assert capsys.readouterr().out.endswith("suite: 7 passed, 0 failed, 1 skipped\n")
    assert alike(folders, {"unit": 4.0}) == 1
    said = capsys.readouterr().out
    assert "unit took 10 s, more than twice its 4 s" in said
    assert "jupyter has no budget" in said
    assert alike([run.Folder("unit", 1.0, passed=1, failed=1)], None) == 1


def test_machine_of_half_the_speed_gets_twice_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    slow = partial(run.finish, measured=lambda: 2 * budget.REFERENCE_S)
    assert slow([run.Folder("unit", 15.0, passed=5)], {"unit": 4.0}) == 0
    assert slow([run.Folder("unit", 17.0, passed=5)], {"unit": 4.0}) == 1
    assert "unit took 17 s, more than twice its 4 s, on a machine 2.0 times as slow" in capsys.readouterr().out
