"""Output that cannot be written does not stop the training."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, NIGHTLY, RANK, hvdrun
from hvdtest.launch import clean_environment

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

FULL = os.strerror(errno.ENOSPC)
SCRIPT = "import sys; print('12345'); print('678', file=sys.stderr)"
ELASTIC = pytest.param(["--min-np", "2"], "localhost:", marks=NIGHTLY)


def ran(flags: list[str], stdout: Path, stderr: Path) -> int:
    with stdout.open("w") as out, stderr.open("w") as err:
        return subprocess.run(
            [*HVDRUN, "-np", "2", *flags, sys.executable, "-c", SCRIPT],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=100,
            check=False,
        ).returncode


@pytest.mark.parametrize(("flags", "host"), [([], ""), ELASTIC], ids=["fixed", "elastic"])
def test_a_full_disk_does_not_stop_the_training(tmp_path: Path, flags: list[str], host: str) -> None:
    """It ended the job with OSError."""
    full, err = Path("/dev/full"), tmp_path / "stderr"
    assert ran(flags, full, err) == 0
    said = sorted(err.read_text().splitlines())
    lost = 2 * len(f"[{host}0]<stdout>:12345\n")
    assert said == [
        f"[{host}0]<stderr>:678",
        f"[{host}1]<stderr>:678",
        f"hvdrun: output was lost: {lost} bytes of stdout ({FULL})",
    ]


def test_a_full_disk_of_stderr_does_not_stop_the_training(tmp_path: Path) -> None:
    out = tmp_path / "stdout"
    assert ran([], out, Path("/dev/full")) == 0
    assert sorted(out.read_text().splitlines()) == ["[0]<stdout>:12345", "[1]<stdout>:12345"]


def test_files_of_output_are_rotated(tmp_path: Path) -> None:
    script = "import sys\nfor step in range(300): sys.stdout.write(f'{step:09d}\\n'); sys.stdout.flush()"
    done = hvdrun("-np", "1", "--output-filename", str(tmp_path), "--output-max-size", "1K", script=script)
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((tmp_path / "rank.0").iterdir())
    assert [file.name for file in files] == ["stderr", "stdout", "stdout.1"]
    assert files[1].read_text().endswith("000000299\n")
    assert len(done.stdout.splitlines()) == 300


# The exit report.


SPOKEN = f"""{RANK}
import sys, time
print(os.getpid(), flush=True)
if rank == 1:
    sys.exit(3)
time.sleep(120)
"""


@pytest.mark.parametrize("flags", [[], pytest.param(["--min-np", "2"], marks=NIGHTLY)], ids=["fixed", "elastic"])
def test_exit_report_names_the_first_cause(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "exit.json"
    done = hvdrun("-np", "2", *flags, "--exit-report", str(path), script=SPOKEN)
    report = json.loads(path.read_text())
    assert (done.returncode, report["outcome"], report["status"]) == (3, "failed", 3)
    assert report["lost_output_bytes"] == {}
    pids = {int(line.partition("<stdout>:")[2]) for line in done.stdout.splitlines()}
    assert {rank["pid"] for rank in report["ranks"]} == pids
    assert {rank["host"] for rank in report["ranks"]} == {socket.gethostname()}
    assert [rank["status"] for rank in report["ranks"]].count(3) >= 1
    assert report["first_cause"]["status"] == 3


def test_exit_report_of_a_host_that_is_lost(ssh: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    script = f"{RANK}\nimport signal, time\nif rank == 1: os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(120)"
    words = ["-np", "2", "-H", "localhost:1,there:1", "--exit-report", str(path)]
    done = hvdrun(*words, script=script, **ssh[0])
    report = json.loads(path.read_text())
    assert (done.returncode, report["outcome"], report["status"]) == (1, "failed", 1)
    assert done.stderr == f"hvdrun: {report['message']}\n"
    lost = report["ranks"][1]
    assert (lost["rank"], lost["host"], lost["signal"], lost["reason"]) == (1, "there", "SIGKILL", report["message"])
    assert lost["pid"] is not None
