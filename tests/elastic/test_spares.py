"""Elastic jobs with spare processes, which replace a failed rank at once: row 31 of the scenarios."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdtest.elastic_job import ElasticJob, Ended
from hvdtest.hvdrun import NIGHTLY, hvdrun, processes_with

import hvd_kernel
from hvd_kernel.processes.spares import ENTRY

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

READY = "has 1 spare process ready"
SECONDS = 150.0


class Watched:
    """A running job whose stderr is awaited line by line."""

    def __init__(self, job: ElasticJob, process: subprocess.Popen[str], mark: str) -> None:
        self.job, self._process, self._mark = job, process, mark
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def until(self, text: str, times: int = 1) -> None:
        def is_there() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self._changed:
            assert self._changed.wait_for(lambda: is_there() or self._over, SECONDS), self.lines
            assert is_there(), self.lines

    def spares(self) -> list[int]:
        """Return the waiting or starting spare processes, and those that have waited."""
        found = [line for line in processes_with(self._mark) if f"-m {ENTRY} " in line]
        return [int(line.rpartition("(")[2].rstrip(")")) for line in found]

    def go(self, place: str = "1,0") -> None:
        """Have ranks go on that wait there."""
        (self.job.folder / f"go {place}").touch()

    def end(self) -> Ended:
        assert self._process.stdout is not None
        guard = threading.Timer(SECONDS, self._process.kill)
        guard.start()
        out = self._process.stdout.read()
        self._reader.join()
        status = self._process.wait()
        guard.cancel()
        return self.job.ended(status, out, "".join(self.lines))


def until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.05)


Start = Callable[..., Watched]


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Starts a job, which has ended at the end of the test."""
    with _started(mark) as begin:
        yield begin


@contextmanager
def _started(mark: str) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def begin(job: ElasticJob, *flags: str, **env: str) -> Watched:
        processes.append(job.start(*flags, **env))
        return Watched(job, processes[-1], mark)

    try:
        yield begin
    finally:
        for process in processes:
            process.kill()
            process.wait()


TWO = ("-np", "2", "--min-np", "1", "--spares", "1")


def test_31_spare_replaces_a_failed_rank(tmp_path: Path, start: Start) -> None:
    """The smoke of the default tier."""
    job = start(ElasticJob(tmp_path, exits={"1,0": {0: "wait kill"}}), *TWO)
    job.until(READY)
    [spare] = job.spares()
    job.go()
    ended = job.end()
    ended.trained(2, 2, 2)
    assert ended.column("workers") == [[0, 1], [1, 2], [1, 2]]
    assert [pids[-1] for pids in ended.column("pids")[1:]] == [spare, spare]
    assert "worker 2 has ended as rank 1 of 2" in ended.out
    assert not [line for line in ended.out.splitlines() if line.startswith("[localhost:0]")]


@NIGHTLY
def test_next_spare_starts_after_one_was_used(tmp_path: Path, start: Start) -> None:
    job = start(ElasticJob(tmp_path, exits={"1,0": {0: "wait kill"}, "2,0": {1: "wait kill"}}), *TWO)
    job.until(READY)
    [first] = job.spares()
    job.go()
    job.until(READY, 2)
    [second] = {*job.spares()} - {first}
    job.go("2,0")
    ended = job.end()
    ended.trained(2, 2, 2)
    assert ended.column("workers") == [[0, 1], [1, 2], [2, 3]]
    assert ended.column("pids")[-1] == [first, second]


@NIGHTLY
def test_two_simultaneous_failures_use_two_spares(tmp_path: Path, start: Start) -> None:
    job = start(
        ElasticJob(tmp_path, exits={"1,0": {0: "wait kill", 2: "wait kill"}}),
        *("-np", "4", "--min-np", "1", "--spares", "2"),
    )
    job.until("has 2 spare processes ready")
    spares = job.spares()
    job.go()
    ended = job.end()
    ended.trained(4, 4, 4)
    assert {*spares} < {*ended.column("pids")[-1]}


@NIGHTLY
def test_dead_spare_is_replaced_and_fails_no_rank(tmp_path: Path, start: Start) -> None:
    job = start(ElasticJob(tmp_path, exits={"1,0": {0: "wait"}}), *TWO, "--max-restarts", "0")
    for death in range(3):
        job.until(READY, death + 1)
        [spare] = job.spares()
        os.kill(spare, signal.SIGKILL)
    job.until("warning: localhost has fewer spare processes than it was to have: they end with -9")
    assert job.spares() == []
    job.go()
    ended = job.end()
    ended.trained(2, 2, 2)
    assert ended.column("generation") == [1, 1, 1]


@NIGHTLY
def test_spares_of_a_host_leave_with_it(tmp_path: Path, start: Start) -> None:
    schedule = {0: "localhost:1 127.0.0.1:1", 1: "localhost:1"}
    job = start(
        ElasticJob(tmp_path, exits={"0,5": {0: "wait"}, "2,0": {0: "wait"}}, waits=(0,), schedule=schedule),
        *("-np", "2", "--min-np", "1", "--max-np", "2", "--spares", "1"),
    )
    job.until(f"localhost {READY}")
    job.until(f"127.0.0.1 {READY}")
    assert len(job.spares()) == 2
    job.go("0,5")
    job.until("generation 2 begins")
    until(lambda: len(job.spares()) == 1)
    job.go("2,0")
    job.end().trained(2, 1, 1)


@NIGHTLY
def test_spares_of_hosts_that_ssh_reaches(tmp_path: Path, ssh: tuple[dict[str, str], Path], start: Start) -> None:
    job = start(
        ElasticJob(tmp_path, exits={"1,0": {1: "wait kill"}}),
        *("-np", "2", "--min-np", "1", "-H", "a:1,b:1", "--spares", "1"),
        **ssh[0],
    )
    job.until(f"a {READY}")
    job.until(f"b {READY}")
    spares = job.spares()
    job.go()
    ended = job.end()
    ended.trained(2, 2, 2)
    assert ended.column("workers")[-1] == [0, 2]
    assert ended.column("pids")[-1][1] in spares


@NIGHTLY
def test_program_without_python_has_no_spares_and_a_warning() -> None:
    done = hvdrun("-np", "1", "--min-np", "1", "--spares", "1", "true")
    assert done.returncode == 0, done.stderr
    assert "warning: localhost has fewer spare processes than it was to have: true: only programs" in done.stderr


@NIGHTLY
def test_run_uses_spares(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)

    def train(folder: str) -> tuple[int, int, list[str]]:
        import os
        import time
        from pathlib import Path

        import numpy as np

        import hvd_kernel.numpy as hvd

        hvd.init()
        state = hvd.elastic.ObjectState(step=0)

        @hvd.elastic.run
        def steps(state: hvd.elastic.ObjectState) -> None:
            while state.step < 10:
                if state.step == 5 and os.environ["HVD_WORKER"] == "1":
                    while not Path(folder, "go").exists():
                        time.sleep(0.02)
                    os._exit(3)
                hvd.allreduce(np.ones(1), op=hvd.Sum, name="s")
                state.step += 1
                state.commit()

        steps(state)
        return hvd.rank(), hvd.size(), Path("/proc/self/cmdline").read_text().split("\0")

    def say_go() -> None:
        until(lambda: READY in said.getvalue())
        (tmp_path / "go").touch()

    goes = threading.Thread(target=say_go)
    goes.start()
    found = hvd_kernel.run(train, (str(tmp_path),), num_proc=2, min_num_proc=2, spares=1)
    goes.join()
    assert [(rank, size, ENTRY in command) for rank, size, command in found] == [(0, 2, False), (1, 2, True)]


@NIGHTLY
def test_spares_variable_of_notebooks_applies_to_jobs(tmp_path: Path, start: Start) -> None:
    job = start(ElasticJob(tmp_path, exits={"1,0": {0: "wait"}}), "-np", "1", "--min-np", "1", HVD_SPARES="1")
    job.until(READY)
    job.go()
    job.end().trained(1, 1, 1)
