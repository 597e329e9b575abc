"""Output that cannot be written does not stop the training."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, NIGHTLY, hvdrun
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
