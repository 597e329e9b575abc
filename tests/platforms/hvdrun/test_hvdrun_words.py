"""hvdrun, through the real command: its messages about a crash in C, and about an unusable command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import RANK, good, hvdrun, ran
from hvdtest.launch import clean_environment

from hvd_kernel.compat import rank_environment
from hvd_kernel.launch.job_run import NO_FOLDER

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

CRASH = f"""{RANK}
import ctypes, time
def reads_what_is_not_there():
    ctypes.string_at(0)
if rank == 1:
    reads_what_is_not_there()
time.sleep(300)
"""


def test_a_crash_in_c_has_the_signals_name_and_pythons_stack() -> None:
    done = hvdrun("-np", "2", script=CRASH)
    assert done.returncode == 139
    said = done.stderr.splitlines()
    assert said[-1] == "hvdrun: rank 1 died: segmentation fault (SIGSEGV); all ranks have ended."
    assert any("Fatal Python error: Segmentation fault" in line for line in said)
    assert any("in reads_what_is_not_there" in line for line in said)


def test_fault_handler_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "")
    done = hvdrun("-np", "2", script=CRASH)
    assert "Fatal Python error" not in done.stderr
    assert "segmentation fault (SIGSEGV)" in done.stderr


@pytest.mark.parametrize("executable", [False, True], ids=["no program", "no interpreter in its first line"])
def test_non_executable_script_is_refused_with_the_remedy(
    executable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print('never')\n")
    (tmp_path / "train.py").chmod(0o755 if executable else 0o644)
    monkeypatch.chdir(tmp_path)
    if executable:
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = hvdrun("-np", "2", "train.py")
    assert done.returncode == 1
    assert "train.py (it is a script: did you mean `python train.py`?)" in done.stderr


@pytest.mark.parametrize("flags", [(), ("--min-np", "1")], ids=["fixed", "elastic"])
def test_a_deleted_directory_is_refused_by_name(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = hvdrun("-np", "2", *flags, sys.executable, "-c", "print('never')")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"hvdrun: {NO_FOLDER}\n")


def test_horovods_own_module_is_the_command() -> None:
    """It did nothing, and exited 0."""
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", "print('a rank')"]
    text = good(ran(command, **rank_environment(clean_environment())))
    assert sorted(text.splitlines()) == ["[0]<stdout>:a rank", "[1]<stdout>:a rank"]


TWICE = """
from hvd_kernel.core import session
for _ in range(2):
    session.init()
    session.shutdown()
"""


def test_replaced_settings_are_reported_once(tmp_path: Path) -> None:
    """hvdrun reports its own flags, rank 0 reports Horovod's variables, also after a second rendezvous."""
    (tmp_path / "c.yaml").write_text("logging: {hide_timestamp: true}\n")
    words = ["--config-file", str(tmp_path / "c.yaml"), "--torus", "--num-nccl=2", "--mpi-args", "-bind-to none"]
    done = hvdrun("-n", "2", *words, script=TWICE, HOROVOD_GPU_OPERATIONS="MPI", HOROVOD_WITH_PYTORCH="1")
    good(done)
    begins = [
        f"hvdrun: warning: {tmp_path}/c.yaml:1:27: logging.hide_timestamp: is ignored: ",
        "hvdrun: warning: --num-nccl-streams has no effect: ",
        "hvdrun: warning: --mpi-args and --binding-args are left out: ",
        "[0]<stderr>:hvd_kernel: HOROVOD_GPU_OPERATIONS='MPI': ",
        "[0]<stderr>:hvd_kernel: HOROVOD_TORUS_ALLREDUCE='1': ",
    ]
    said = done.stderr.splitlines()
    assert [line[: len(begin)] for line, begin in zip(said, begins, strict=True)] == begins
