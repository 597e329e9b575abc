"""A job that signals cancel: SIGTERM to hvdrun, to an agent, or to both, as batch systems and pod evictions send it.

Terms.
  save   what a rank does in its handler of SIGTERM; it ends when the test opens the gate, a file
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdtest.cluster import PATIENCE_S
from hvdtest.hvdrun import HVDRUN, NIGHTLY, RANK, gone, processes_with
from hvdtest.launch import clean_environment

from hvd_kernel.launch.cancellation import cancelled_text

pytestmark = [pytest.mark.mp]

NP = 2
ONE_HOST = ["-np", str(NP)]
TWO_HOSTS = ["-np", str(NP), "-H", "here:1,there:1"]  # of the fake ssh
HOSTS = pytest.mark.parametrize("flags", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
SAVE = f"""{RANK}
import signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def say(text):
    sys.stdout.write(f"{{rank}} {{text}}\\n")
    sys.stdout.flush()
def save(number, frame):
    say("saves")
    while not (folder / "gate").exists():
        time.sleep(0.01)
    (folder / f"saved{{rank}}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
say(f"has agent {{os.getppid()}}")
while True:
    signal.pause()
"""
STUBBORN = f"""{RANK}
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if rank == 1 else [])
sys.stdout.write(f"{{rank}} has agent {{os.getppid()}}\\n")
sys.stdout.flush()
while True:
    signal.pause()
"""


class Running:
    """A running hvdrun."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.agents = [int(line.rpartition(" ")[2]) for line in self.lines("has agent")]

    def lines(self, text: str) -> list[str]:
        """Return the next line of each rank, in rank order, without its prefix."""
        assert self.process.stdout is not None
        lines = sorted(self.process.stdout.readline().partition("<stdout>:")[2].strip() for _ in range(NP))
        assert [line.partition(" ")[2].startswith(text) for line in lines] == [True] * NP, lines
        return lines

    def end(self) -> tuple[int, str]:
        """Return status and stderr."""
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextmanager
def running(ssh: tuple[dict[str, str], Path], *words: str | Path) -> Iterator[Running]:
    with subprocess.Popen(
        [*HVDRUN, *map(str, words)],
        env=clean_environment(**ssh[0]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


def send(pids: Sequence[int]) -> None:
    for pid in dict.fromkeys(pids):
        os.kill(pid, signal.SIGTERM)


@HOSTS
@pytest.mark.parametrize("to", ["hvdrun", "one agent", "hvdrun and all agents"])
def test_a_save_completes(ssh: tuple[dict[str, str], Path], tmp_path: Path, flags: list[str], to: str) -> None:
    """The agents ended their ranks at once when they got SIGTERM themselves."""
    with running(ssh, *flags, sys.executable, "-u", "-c", SAVE, tmp_path) as job:
        pids = {"hvdrun": [job.process.pid], "one agent": job.agents[-1:]}
        send(pids.get(to, [*job.agents, job.process.pid]))
        job.lines("saves")
        (tmp_path / "gate").touch()
        status, err = job.end()
    host = {ONE_HOST[-1]: "localhost", TWO_HOSTS[-1]: "there"}[flags[-1]] if to == "one agent" else ""
    assert status == 128 + signal.SIGTERM
    if to == "hvdrun and all agents":  # whichever is handled first
        host = err.partition(" on ")[2].partition(";")[0]
    assert err == f"hvdrun: {cancelled_text(signal.SIGTERM, host)}\n"
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_a_signal_cancels_an_elastic_job(ssh: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    with running(ssh, *ONE_HOST, "--min-np", str(NP), sys.executable, "-u", "-c", SAVE, tmp_path) as job:
        send([job.process.pid])
        job.lines("saves")
        (tmp_path / "gate").touch()
        assert job.end() == (128 + signal.SIGTERM, f"hvdrun: {cancelled_text(signal.SIGTERM)}\n")
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_a_save_completes_without_the_launcher(ssh: tuple[dict[str, str], Path], tmp_path: Path, mark: str) -> None:
    """A batch system may kill hvdrun with its script, while the steps on other nodes have their grace period."""
    with running(ssh, *TWO_HOSTS, sys.executable, "-u", "-c", SAVE, tmp_path) as job:
        send(job.agents)
        job.lines("saves")
        job.process.kill()
        job.process.wait()
        (tmp_path / "gate").touch()
        assert gone(mark), processes_with(mark)
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_signal_that_also_kills_an_agent_is_the_cause(ssh: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    """It was reported as a host that was lost, with chained tracebacks."""
    with running(ssh, *TWO_HOSTS, sys.executable, "-u", "-c", SAVE, tmp_path) as job:
        (tmp_path / "gate").touch()
        os.kill(job.agents[1], signal.SIGKILL)
        send([job.process.pid])
        assert job.end() == (
            128 + signal.SIGTERM,
            f"hvdrun: {cancelled_text(signal.SIGTERM, killed=[1], grace_s=30.0)}\n",
        )


@HOSTS
def test_ranks_are_killed_after_the_grace_period(ssh: tuple[dict[str, str], Path], mark: str, flags: list[str]) -> None:
    with running(ssh, "--grace-period", "0.5", *flags, sys.executable, "-u", "-c", STUBBORN) as job:
        send([job.process.pid])
        assert job.end() == (
            128 + signal.SIGTERM,
            f"hvdrun: {cancelled_text(signal.SIGTERM, killed=[1], grace_s=0.5)}\n",
        )
    assert gone(mark, 0.0), processes_with(mark)


@HOSTS
@pytest.mark.parametrize("to", ["hvdrun", pytest.param("agents", marks=NIGHTLY)])
def test_a_later_signal_kills_the_ranks(
    ssh: tuple[dict[str, str], Path], mark: str, tmp_path: Path, flags: list[str], to: str
) -> None:
    """One that arrives with the first does not: batch systems signal a process on several paths."""
    with running(ssh, "--grace-period", "1000", *flags, sys.executable, "-u", "-c", SAVE, tmp_path) as job:
        pids = [job.process.pid] if to == "hvdrun" else job.agents
        send(pids)
        send(pids)
        job.lines("saves")
        begin = time.monotonic()
        while job.process.poll() is None:
            send([pid for pid in pids if Path(f"/proc/{pid}").exists()])
            assert time.monotonic() - begin < PATIENCE_S
            time.sleep(0.1)
        status, err = job.end()
    host = "" if to == "hvdrun" else err.partition(" on ")[2].partition(";")[0]
    assert (status, err) == (128 + signal.SIGTERM, f"hvdrun: {cancelled_text(signal.SIGTERM, host, [0, 1])}\n")
    assert not [*tmp_path.glob("saved*")]
    assert gone(mark, 0.0), processes_with(mark)
