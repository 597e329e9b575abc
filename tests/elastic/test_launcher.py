"""Other duties of hvdrun in an elastic job: exit, files, input, run(); rows 27 and 29 of the scenarios."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.elastic_job import BOTH, ElasticJob
from hvdtest.hvdrun import HVDRUN, gone, hvdrun, processes_with, ran
from hvdtest.launch import clean_environment

import hvd_kernel
from hvd_kernel.errors import RankFailed
from hvd_kernel.launch.agents import UNRESOLVED

pytestmark = [pytest.mark.mp, pytest.mark.nightly]

FOUR = ("-np", "4", "--min-np", "2", "-H", BOTH)
PATIENCE_S = 60.0


def until_line(job: ElasticJob) -> None:
    """Wait until the first epoch has ended."""
    limit = time.monotonic() + PATIENCE_S
    while not job.log.read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.fixture
def hanging(tmp_path: Path, mark: str) -> Iterator[tuple[subprocess.Popen[str], ElasticJob]]:
    """Start a job whose ranks wait for each other forever, in epoch 1."""
    job = ElasticJob(tmp_path, exits={"1,0": {0: "hang"}})
    process = job.start(*FOUR)
    try:
        until_line(job)
        yield process, job
    finally:
        process.kill()
        process.communicate()
    assert gone(mark)


def test_27_no_process_outlives_a_killed_driver(hanging: tuple[subprocess.Popen[str], ElasticJob], mark: str) -> None:
    process, _ = hanging
    there = processes_with(mark)
    assert len(there) >= 7, "the driver, two agents and four workers"
    maps = [Path("/proc", each.rpartition("(")[2].rstrip(")"), "maps").read_text() for each in there]
    assert not any("/dev/shm" in each for each in maps), "what has no name there cannot stay"
    process.kill()
    process.wait()
    assert gone(mark, 1.0), processes_with(mark)


SSH = """#!/bin/sh
# A fake: ssh of OpenSSH for a name without an address. The real one waits for the DNS, here a minute.
echo 'ssh: Could not resolve hostname no-such-host: Name or service not known' >&2
exit 255
"""


def test_job_ends_with_1_if_no_host_has_an_address(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    elastic = ["-np", "2", "--min-np", "1", "-H", "no-such-host:2"]
    done = ran([*HVDRUN, *elastic, sys.executable, "-c", ""], PATH=f"{tmp_path}:{os.environ['PATH']}")
    last = f"hvdrun: host no-such-host cannot be used: {UNRESOLVED}. It said:\n{SSH.split(chr(39))[1]}; "
    assert done.stderr.endswith(f"{last}not all workers have ended well; all ranks have ended.\n"), done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(hanging: tuple[subprocess.Popen[str], ElasticJob], number: int) -> None:
    process, job = hanging
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number, job.ended(process.returncode, out, err).told


def test_training_ranks_clean_up_before_they_exit(tmp_path: Path, mark: str) -> None:
    """Ranks treated the SIGTERM as a notice, waited for an ended driver, and were killed five seconds later."""
    job = ElasticJob(tmp_path, epochs=100_000)
    process = job.start("-np", "2", "--min-np", "1")
    until_line(job)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT, err
    assert sorted(line.partition(":")[2] for line in out.splitlines()) == [f"worker {n} has cleaned up" for n in (0, 1)]


def test_sigquit_prints_the_stacks_of_all_ranks(hanging: tuple[subprocess.Popen[str], ElasticJob]) -> None:
    process, _ = hanging
    process.send_signal(signal.SIGQUIT)
    assert process.stderr is not None
    for line in process.stderr:
        if "hang_here(3600)" in line and line.startswith("    "):
            break
    else:
        raise AssertionError("no stack of the rank that hangs")


def test_output_files_of_each_process_remain(tmp_path: Path, mark: str) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {1: "raise"}})
    ended = job.run("-np", "2", "--min-np", "1", "--output-filename", str(tmp_path / "out"))
    ended.trained(2, 2, 2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank.0", "rank.1", "rank.2"]
    assert "worker 1 fails as planned" in (tmp_path / "out/rank.1/stderr").read_text()
    assert "worker 2 has ended as rank 1 of 2" in (tmp_path / "out/rank.2/stdout").read_text()


def test_stdin_is_forwarded_to_the_first_process(mark: str) -> None:
    script = "import os, sys; print(os.environ['HVD_WORKER'], sys.stdin.read())"
    done = hvdrun("-np", "2", "--min-np", "1", script=script, given="some words")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[localhost:0]<stdout>:0 some words", "[localhost:1]<stdout>:1 "]


def test_unstartable_program_is_named(mark: str) -> None:
    done = subprocess.run(
        [*HVDRUN, "-np", "2", "--min-np", "1", "no-such-program"],
        env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 127, done.stderr
    assert "no-such-program" in done.stderr.splitlines()[-1]


def test_flags_that_exclude_elastic_ones(mark: str) -> None:
    for flag in ("--mpi", "--jsrun"):
        done = hvdrun("-np", "2", "--min-np", "1", flag, "true")
        assert (done.returncode, "starts a job that keeps its size" in done.stderr) == (2, True)
    done = subprocess.run(
        [*HVDRUN, "-np", "2", "--min-np", "1", "true"],
        env=clean_environment(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]", SLURM_NTASKS_PER_NODE="2", SLURM_NNODES="2"),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "name the hosts of an elastic job there with -H" in done.stderr


def test_29_run_returns_the_values_of_the_first_ranks(mark: str) -> None:
    def place() -> tuple[int, int]:
        import hvd_kernel.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    hosts = "localhost:2,127.0.0.1:2"
    assert hvd_kernel.run(place, num_proc=2, min_num_proc=2, max_num_proc=2, hosts=hosts) == [(0, 2), (1, 2)]
    assert hvd_kernel.run(place, num_proc=4, min_num_proc=3, hosts=hosts) == [(0, 4), (1, 4), (2, 4)]


def test_run_returns_values_of_functions_without_init(mark: str) -> None:
    def number() -> int:
        import os

        return int(os.environ["HVD_WORKER"])

    assert hvd_kernel.run(number, num_proc=2, min_num_proc=2, max_num_proc=2) == [0, 1]


def test_run_outlives_a_failure(mark: str, tmp_path: Path) -> None:
    def train(first: str) -> tuple[int, int, float]:
        import os
        from pathlib import Path

        import numpy as np

        import hvd_kernel.numpy as hvd

        hvd.init()
        state = hvd.elastic.ObjectState(step=0, total=0.0)

        @hvd.elastic.run
        def steps(state: hvd.elastic.ObjectState) -> None:
            while state.step < 10:
                if state.step == 5 and os.environ["HVD_WORKER"] == "1":
                    Path(first).touch()
                    os._exit(3)
                state.total += float(hvd.allreduce(np.ones(1), op=hvd.Sum, name="s")[0])
                state.step += 1
                state.commit()

        steps(state)
        return hvd.rank(), hvd.size(), state.total

    assert hvd_kernel.run(train, (str(tmp_path / "first"),), num_proc=2, min_num_proc=1) == [(0, 2, 20.0)]
    assert (tmp_path / "first").exists()


def test_run_raises_the_exception_of_the_function(mark: str) -> None:
    def fail() -> None:
        raise ValueError("my bug")

    with pytest.raises(RankFailed, match=r"^rank [01] of 2 raised ValueError: my bug"):
        hvd_kernel.run(fail, num_proc=2, min_num_proc=1, env={"PYTHONPATH": ":".join(sys.path)})


# Elastic jobs on hosts that ssh reaches: a stand-in for ssh runs its command here, for each name a host of its own.

Ssh = tuple[dict[str, str], Path]


def test_ranks_on_other_hosts_fail_and_are_replaced(tmp_path: Path, ssh: Ssh) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "kill"}, "2,0": {1: "raise"}})
    ended = job.run("-np", "3", "--min-np", "2", "-H", "a:2,b:1", **ssh[0])
    ended.trained(3, 3, 3)
    assert ended.column("workers")[-1] == [2, 3, 4]
    assert ended.column("host")[-1] == "b"
    assert ended.column("local")[-1] == [0, 1, 0, 2]


def test_unreachable_host_is_excluded(tmp_path: Path, ssh: Ssh) -> None:
    schedule = {0: "a:2", 1: "a:2 closed:1 b:1"}
    ended = ElasticJob(tmp_path, waits=(0,), schedule=schedule).run("-np", "2", "--min-np", "2", **ssh[0])
    assert ended.status == 0, ended.told
    assert ended.column("size") == [2, 3, 3], ended.told
    assert "closed is lost: host closed cannot be used: ssh cannot log in there" in ended.err, ended.told


def test_killed_agent_counts_as_a_lost_host(tmp_path: Path, ssh: Ssh) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "agent"}})
    ended = job.run("-np", "3", "--min-np", "2", "-H", "a:1,b:2", **ssh[0])
    ended.trained(3, 2, 2)
    assert ended.column("workers")[-1] == [1, 2]
    assert "a is lost: its agent has ended" in ended.err, ended.told


# The example of docs/elastic.md, as it stands there: its training and its script of hosts.

PAGE = Path(__file__).parents[2] / "docs/elastic.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.usefixtures("mark")
def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("python"))
    (tmp_path / "hosts.txt").write_text("localhost:1\n127.0.0.1:1\n")
    script = tmp_path / "hosts.sh"
    script.write_text(block("sh").replace("/shared", str(tmp_path)))
    script.chmod(0o755)
    flags = ["-np", "2", "--min-np", "1", "--max-np", "4", "--host-discovery-script", str(script)]
    done = ran([*HVDRUN, *flags, sys.executable, "-P", "train.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "[0]<stdout>:done on 2 ranks\n"), done.stderr


@pytest.mark.usefixtures("mark")
def test_every_row_names_an_existing_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text().partition("## What happens when")[2]))
    here = Path(__file__).parent
    files = [*here.glob("test_*.py"), *here.parent.rglob("test_elastic*.py")]
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert named
    assert named <= there
