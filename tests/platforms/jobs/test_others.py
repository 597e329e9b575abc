"""Another launcher's command after ``hvdrun --``: its translation to hvdrun's flags, and refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.cli.flags import HvdrunRequest, split
from hvd_kernel.launch.cli.main import _ACTIONS, FLAGS_FIRST, main, misplaced_flags, translate_launcher_line


def handed(line: str) -> str:
    words = line.split()
    return " ".join(translate_launcher_line(words, split(words)[1]))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("-- mpirun -np 4 -bind-to none python t.py", "job run -- mpirun -np 4 -bind-to none python t.py"),
        ("-- /opt/openmpi/bin/mpirun -np 4 python t.py", "job run -- /opt/openmpi/bin/mpirun -np 4 python t.py"),
        ("--gpus none -- mpiexec.hydra -n 4 python t.py", "job run --gpus none -- mpiexec.hydra -n 4 python t.py"),
        ("-- gradient experiments run multinode --name a", "job run -- gradient experiments run multinode --name a"),
        ("-- horovodrun -np 4 --verbose python t.py", "-np 4 --verbose python t.py"),
        ("--gpus none -- hvdrun -np 4 python t.py", "--gpus none -np 4 python t.py"),
        ("-- horovodrun --check-build", "--check-build"),
        ("-- mpirun --version", "--version"),
        ("-- mpirun -h", "--help"),
    ],
)
def test_command_after_two_dashes_is_translated(line: str, instead: str) -> None:
    assert handed(line) == instead


@pytest.mark.parametrize(
    "line",
    [
        "-- python t.py",
        "-np 2 python t.py -- mpirun -np 2 x",
        "-np 2 env mpirun -np 2 python t.py",
        "-- gradient",
        "-np 2 gradient --descent",
        "--version",
        "",
    ],
)
def test_ordinary_program_remains_the_command(line: str) -> None:
    assert handed(line) == ""


@pytest.mark.parametrize("line", ["mpirun -np 4 python t.py", "-np 2 /usr/bin/mpirun x", "-np 2 mpirun", "mpirun"])
def test_launcher_command_without_dashes_is_refused(line: str) -> None:
    with pytest.raises(UsageError) as error:
        handed(line)
    assert str(error.value) == (
        "hvdrun: each rank would call mpirun: write -- before it, and hvdrun reads its line: hvdrun -- mpirun ... "
        "(`env mpirun` is the program itself)"
    )


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("--verbose job run F", "job run --verbose F"),
        ("-np 2 --gpus none job run F -- python t.py", "job run -np 2 --gpus none F -- python t.py"),
        ("--verbose job", "job --verbose"),
        ("--quiet doctor .", "doctor --quiet ."),
        ("job run --verbose F", ""),
        ("doctor .", ""),
        ("--verbose -- job run F", ""),
        ("--verbose ./job run F", ""),
        ("--verbose python job", ""),
        ("--verbose", ""),
        ("", ""),
    ],
)
def test_flags_before_a_command_of_hvdrun_are_noticed(line: str, instead: str) -> None:
    words = line.split()
    assert " ".join(misplaced_flags(words, split(words)[1])) == instead


def test_flags_before_job_are_refused_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """hvdrun started a program ``job`` as rank 0: "cannot be started: No such file or directory"."""
    assert main(["--verbose", "job", "run", "F"]) == 2
    assert capsys.readouterr().err == FLAGS_FIRST.format(command="job", line="hvdrun job run --verbose F") + "\n"


def test_program_of_that_name_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "job"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    requests: list[HvdrunRequest] = []

    def record(request: HvdrunRequest) -> int:
        requests.append(request)
        return 0

    monkeypatch.setitem(_ACTIONS, "", record)
    assert main(["-np", "1", "job", "run"]) == 0
    assert [request.command for request in requests] == [["job", "run"]]
