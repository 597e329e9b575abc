"""hvdrun where ranks share a device: they find a private MPS daemon, which nothing outlives. The daemon is a fake one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest import fake_mps
from hvdtest.cluster import until
from hvdtest.elastic_job import ElasticJob
from hvdtest.hosts import Hosts, why_not
from hvdtest.hvdrun import EITHER, HVDRUN, NIGHTLY, gone, good, hvdrun, lines_of, order, processes_with
from hvdtest.launch import clean_environment

from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.daemon import members

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

SEEN = """
import os
from pathlib import Path
from hvd_kernel.processes.mps import decision
pipes = os.environ.get(decision.PIPES)
print(pipes, pipes is not None and decision.answers(Path(pipes)), os.environ["CUDA_VISIBLE_DEVICES"])
"""
WAITS = "import os, time; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'], os.getppid(), flush=True); time.sleep(300)"


@pytest.fixture
def device(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a host with one device, where the fake daemon is installed."""
    return {"PATH": fake_mps.installed(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": "5"}


@EITHER
def test_ranks_sharing_a_device_get_a_private_mps_daemon(how: str, device: dict[str, str]) -> None:
    done = hvdrun("-np", "2", how, "--verbose", script=SEEN, **device)
    text = good(done)
    assert "hvdrun: localhost: MPS: a private daemon: 2 ranks share 1 device" in done.stderr.splitlines()
    seen = [lines_of(text, rank) for rank in range(2)]
    pipes = Path(seen[0][0].split()[0])
    assert seen == [[f"{pipes} True 5"]] * 2
    assert members(pipes) == []
    assert not pipes.parent.exists()


@NIGHTLY
@pytest.mark.parametrize(
    ("words", "more"),
    [(("-np", "1"), {}), (("-np", "2", "--no-mps"), {}), (("-np", "2"), {"HVD_MPS": "0"})],
    ids=["a device for each", "no-mps", "variable"],
)
def test_ranks_with_their_own_device_get_no_mps_daemon(
    words: tuple[str, ...], more: dict[str, str], device: dict[str, str]
) -> None:
    text = good(hvdrun(*words, script=SEEN, **device, **more))
    assert {*text.splitlines()} == {f"[{rank}]<stdout>:None False 5" for rank in range(int(words[1]))}


@NIGHTLY
def test_failed_start_of_mps_is_reported_once_and_job_continues(device: dict[str, str]) -> None:
    done = hvdrun("-np", "2", script=SEEN, FAKE_MPS="refuses", **device)
    assert lines_of(good(done), 1) == ["None False 5"]
    why = f"nvidia-cuda-mps-control did not start: [fake] {fake_mps.REFUSAL}"
    assert done.stderr.splitlines() == [f"hvdrun: localhost: no MPS, so ranks take turns on the device: {why}"]


@NIGHTLY
def test_running_mps_daemon_is_used_and_unchanged(tmp_path: Path, device: dict[str, str]) -> None:
    with fake_mps.running(tmp_path / "theirs", device["PATH"]) as pipes:
        text = good(hvdrun("-np", "2", script=SEEN, CUDA_MPS_PIPE_DIRECTORY=str(pipes), **device))
        assert lines_of(text, 0) == lines_of(text, 1) == [f"{pipes} True 5"]


@NIGHTLY
@pytest.mark.parametrize("who", ["launcher", "agent"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_mps_daemon_ends_with_any_end_of_the_launcher(mark: str, who: str, number: int, device: dict[str, str]) -> None:
    job = subprocess.Popen(
        [*HVDRUN, "-np", "2", sys.executable, "-P", "-c", WAITS],
        env=clean_environment(**device),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout is not None
    first, _ = job.stdout.readline(), job.stdout.readline()  # both ranks are up
    pipes, agent = first.partition(":")[2].split()
    assert len(members(Path(pipes))) == 1
    os.kill(job.pid if who == "launcher" or number == signal.SIGINT else int(agent), number)
    assert job.wait(60) != 0
    assert gone(mark), processes_with(mark)
    until(lambda: not Path(pipes).parent.exists(), "its folder is removed")
    job.stdout.close()


@NIGHTLY
def test_mps_daemon_outlives_a_rank_and_is_restarted(mark: str, tmp_path: Path, device: dict[str, str]) -> None:
    """Ranks of an elastic job start like this: one after another, by an agent that keeps running."""
    agents, said = Agents(), list[str]()
    env = clean_environment(**device)

    def hear(_agent: AgentHandle, message: m.Message) -> None:
        said.extend([message.data.decode()] if isinstance(message, m.Output) else [])

    def started(number: int) -> Path:
        said.clear()
        command = [sys.executable, "-P", "-c", SEEN]
        agents.every[0].send(order(command, tmp_path, number, env=env, ranks_on_host=2, mps_ranks=2, stays=True))
        assert agents.run_until(lambda: "\n" in "".join(said), 60)
        pipes, answers, _ = "".join(said).split()
        assert answers == "True"
        return Path(pipes)

    try:
        agents.start([Host("localhost", 1)], None, None, 60)
        agents.on_message = hear
        pipes = started(0)
        [daemon] = members(pipes)
        assert (started(1), members(pipes)) == (pipes, [daemon])
        os.kill(daemon, signal.SIGKILL)
        until(lambda: not decision.answers(pipes), "it has died")
        assert started(2) == pipes
        assert members(pipes) != [daemon]
    finally:
        agents.end()
    assert not pipes.parent.exists()


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_ranks_of_mpi_share_the_first_agents_mps_daemon(tmp_path: Path) -> None:
    with Hosts(2) as hosts, hosts.inside(0):
        far = hosts.ssh(tmp_path)
        fake_mps.installed(tmp_path / "mps")
        device = {"PATH": f"{tmp_path / 'mps'}:{far['PATH']}", "CUDA_VISIBLE_DEVICES": "5"}
        text = good(hvdrun("--mpi", "-H", "10.77.0.1:2,10.77.0.2:1", script=SEEN, **far | device))
    seen = [lines_of(text, rank) for rank in range(3)]
    pipes = Path(seen[0][0].split()[0])
    assert seen == [[f"{pipes} True 5"], [f"{pipes} True 5"], ["None False 5"]], "who is alone on its host needs none"
    assert members(pipes) == []
    assert not pipes.parent.exists()


@NIGHTLY
def test_an_elastic_replacement_uses_the_same_mps_daemon(tmp_path: Path, device: dict[str, str]) -> None:
    job = ElasticJob(tmp_path, epochs=4, exits={"1,0": {0: "kill"}, "2,0": {1: "kill"}})
    ended = job.run("-np", "2", "--min-np", "1", **device)
    ended.trained(2, 2, 2, 2)
    assert ended.column("worker") == [0, 1, 2, 2], "who was rank 0, and wrote the line"
    [pipes] = {*ended.column("mps_pipes")}
    assert not Path(pipes).parent.exists()
