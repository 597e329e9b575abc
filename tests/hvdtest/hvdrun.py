"""hvdrun as a command, for tests: run it, read its output, and check that no process is left.

Terms.
  mark  a variable of every process of a test, inherited by descendants
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import clean_environment

from hvd_kernel.processes.channel.messages import RankPlan, StartRanks

HVDRUN = [sys.executable, "-P", "-m", "hvd_kernel.launch"]
NIGHTLY = pytest.mark.nightly
# What holds for our own agents and for MPI: by default over the first, at night over both.
EITHER = pytest.mark.parametrize("how", ["--gloo", pytest.param("--mpi", marks=NIGHTLY)])
# A rank's number for scripts without this package: ranks of MPI have a variable of MPI.
RANK = "import os; rank = int(os.environ.get('HOROVOD_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"
SUM = """
import numpy as np
from hvd_kernel.core import session, ops
session.init()
x = ops.allreduce(np.array([session.rank() + 1.0]), name="x", op=ops.Sum)
print(session.rank(), session.size(), session.local_rank(), session.local_size(), session.cross_size(), x.item())
"""


FAULTS = """
import resource
def faults_of_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        block = b"x" * (64 << 20)
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first, later = faults_of_blocks(), faults_of_blocks()
"""
"""Page faults of blocks of 64 MiB, each of 16,384 pages; ``later`` of those that are allocated again."""

FAKE_SSH = """#!/bin/bash
# A host of its own on this machine: ssh [-T] [-o option] [-p port] [-i file] HOST COMMAND
echo "$*" >> "{log}"
while [[ $1 == -* ]]; do case $1 in -T) shift ;; *) shift 2 ;; esac; done
host=$1; shift
[[ $host == closed ]] && {{ echo "closed: Permission denied (publickey)." >&2; exit 255; }}
[[ $host == bare ]] && exec {python} -P -S -c "import hvd_kernel"
[[ $host == mute ]] && exec sleep 60
echo "Welcome to $host, unread messages: 3"
exec env -i PATH="$PATH" HVD_HOST="$host" "{mark}=1" bash -c "$*"
"""


@contextmanager
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark's name; at the end no process may have it."""
    name = f"HVDRUN_TEST_{os.getpid()}_{time.monotonic_ns()}"
    monkeypatch.setenv(name, "1")
    yield name
    assert gone(name), f"still there: {processes_with(name)}"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a variable for all processes of the test; none of them may be left at the end."""
    with marked(monkeypatch) as name:
        yield name


@pytest.fixture
def ssh(tmp_path: Path, mark: str) -> tuple[dict[str, str], Path]:
    """Return variables with which `ssh` runs its command here, and the file that records its arguments."""
    folder, log = tmp_path / "bin", tmp_path / "ssh.log"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(FAKE_SSH.format(log=log, python=sys.executable, mark=mark))
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}, log


def order(command: Sequence[str], cwd: Path | str, number: int = 0, **more: Any) -> StartRanks:
    """Return the message that makes an agent start one rank; ``more`` overrides defaults."""
    usual: dict[str, Any] = {"command": [*command], "cwd": str(cwd), "env": dict(os.environ)}
    return StartRanks(ranks=[RankPlan(number)], **usual | more)


def processes_with(variable: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " ") + f"({entry.name})")
        except OSError:
            continue
    return found


def gone(variable: str, seconds: float = 30.0) -> bool:
    """True when no process has it; 0 seconds: at this moment."""
    deadline = time.monotonic() + seconds
    while processes_with(variable):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def ran(
    command: Sequence[str], cwd: Path | None = None, *, seconds: float = 100, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing on stdin; ``env``: variables that it has besides."""
    return subprocess.run(
        command,
        env=clean_environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=cwd,
        check=False,
    )


def hvdrun(
    *words: str, script: str = "", given: str | bytes = b"", cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    command = [*HVDRUN, *words, *([sys.executable, "-P", "-c", script] if script else [])]
    done = subprocess.run(
        command,
        input=given.encode() if isinstance(given, str) else given,
        env=clean_environment(**env),
        capture_output=True,
        timeout=200,
        cwd=cwd,
        check=False,
    )
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(text: str, rank: int, name: str = "stdout") -> list[str]:
    label = f"[{rank}]<{name}>:"
    return [line.removeprefix(label) for line in text.splitlines() if line.startswith(label)]
