"""MPS for ranks that share a device: the decision and its reason, the daemon's environment and its end. The daemon is a fake."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hvdtest import fake_mps
from hvdtest.cluster import until
from hvdtest.magic_lines import parse

from hvd_kernel.cluster import warm_ranks
from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.plan import as_text, plan
from hvd_kernel.jobs.spec import JobSpec, Replica, Resources, Variable
from hvd_kernel.magics import messages
from hvd_kernel.magics.cluster_request import requested_cluster
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.daemon import PrivateDaemon, members
from hvd_kernel.processes.mps.decision import Mps, decide

CONTROL = "/usr/bin/nvidia-cuda-mps-control"


@pytest.mark.parametrize(
    ("choice", "ranks", "devices", "control", "env", "running", "said"),
    [
        ("1", 4, 1, CONTROL, {}, "", "a private daemon: 4 ranks share 1 device"),
        ("1", 4, 2, CONTROL, {}, "", "a private daemon: 4 ranks share 2 devices"),
        ("1", 3, 2, CONTROL, {}, "", "a private daemon: 3 ranks share 2 devices"),
        ("1", 2, 2, CONTROL, {}, "", "none: each rank has a device of its own"),
        ("1", 1, 1, CONTROL, {}, "", "none: each rank has a device of its own"),
        ("1", 4, 0, CONTROL, {}, "", "none: there is no GPU for the ranks"),
        ("1", 4, 1, None, {}, "", "none: nvidia-cuda-mps-control is not installed"),
        ("0", 4, 1, CONTROL, {}, "", "none: --no-mps, or HVD_MPS=0"),
        ("1", 4, 1, CONTROL, {}, "/tmp/nvidia-mps", "one that runs already: its pipes are in /tmp/nvidia-mps"),
        ("0", 4, 1, CONTROL, {}, "/tmp/nvidia-mps", "one that runs already: its pipes are in /tmp/nvidia-mps"),
        ("1", 1, 1, None, {decision.PIPES: "/a"}, "/a", "one that runs already: its pipes are in /a"),
        (
            "1",
            4,
            1,
            CONTROL,
            {decision.PIPES: "/a"},
            "",
            "none: CUDA_MPS_PIPE_DIRECTORY=/a is set and no daemon answers there",
        ),
        ("1", 4, 1, CONTROL, {decision.PIPES: ""}, "", "a private daemon: 4 ranks share 1 device"),
    ],
)
def test_ranks_that_get_a_daemon(  # noqa: PLR0917 - a row
    choice: str, ranks: int, devices: int, control: str | None, env: dict[str, str], running: str, said: str
) -> None:
    assert decide(choice, ranks, devices, control=control, env=env, running=running).sentence == said


@pytest.mark.parametrize(
    ("shown", "given"),
    [
        (None, None),
        ("0,2", None),  # it would renumber them, and its clients' 0,2 would be wrong
        ("GPU-8a,GPU-9b", "GPU-8a,GPU-9b"),
        ("MIG-5c", "MIG-5c"),
        ("GPU-8a,1", None),
        ("", None),
    ],
)
def test_environment_of_the_daemon(shown: str | None, given: str | None) -> None:
    env = {"PATH": "/bin"} | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert decision.for_daemon(env) == {"PATH": "/bin"} | ({} if given is None else {"CUDA_VISIBLE_DEVICES": given})


def test_inputs_of_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "_DEFAULT", tmp_path / "nvidia-mps")
    env = {"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "5"}
    assert decision.inspect(2, env) == Mps("none", "nvidia-cuda-mps-control is not installed")
    env["PATH"] = fake_mps.installed(tmp_path)
    assert decision.inspect(2, env) == Mps("private", "2 ranks share 1 device")
    assert decision.inspect(2, env | {"HVD_GPUS": "none"}).reason == "there is no GPU for the ranks"
    assert decision.inspect(2, env | {"HVD_MPS": "0"}).reason == "--no-mps, or HVD_MPS=0"
    (tmp_path / "nvidia-mps").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "nvidia-mps" / "control"))
        assert decision.inspect(2, env).kind == "private", "what nobody listens to is left over"
        listening.listen()
        assert decision.inspect(2, env) == Mps("running", f"its pipes are in {tmp_path / 'nvidia-mps'}")


def test_named_pipe_is_alive_while_it_has_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "control")
    assert not decision.answers(tmp_path)
    reading = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert decision.answers(tmp_path)
    os.close(reading)
    assert not decision.answers(tmp_path)
    assert not decision.answers(tmp_path / "nowhere")


# The daemon itself: the fake one, in processes of its own.


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of two ranks on one device, where the fake is installed."""
    monkeypatch.setattr(decision, "_DEFAULT", tmp_path / "nvidia-mps")
    monkeypatch.setenv("PATH", fake_mps.installed(tmp_path / "bin"))
    return dict(os.environ) | {"CUDA_VISIBLE_DEVICES": "5"}


@pytest.fixture
def said() -> list[str]:
    return []


def test_lifecycle_of_a_private_daemon(env: dict[str, str], said: list[str]) -> None:
    daemon = PrivateDaemon(said.append)
    variables = daemon.variables(2, env)
    pipes, logs = (Path(variables[name]) for name in (decision.PIPES, decision.LOGS))
    try:
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in (pipes, logs, pipes.parent)] == [0o700] * 3
        assert len(members(pipes)) == 1
        assert (logs / "control.log").read_text() == "[fake] Startup CUDA_VISIBLE_DEVICES=(not set)\n"
        assert daemon.variables(3, env) == variables
        assert len(members(pipes)) == 1, "one for all"
    finally:
        daemon.close()
    assert members(pipes) == []
    assert not pipes.parent.exists()
    assert said == []
    daemon.close()


def test_dead_daemon_is_restarted(env: dict[str, str], said: list[str]) -> None:
    daemon = PrivateDaemon(said.append)
    variables = daemon.variables(2, env)
    pipes = Path(variables[decision.PIPES])
    try:
        [before] = members(pipes)
        ended = os.pidfd_open(before)
        os.kill(before, signal.SIGKILL)
        assert is_ready(ended, 10)
        os.close(ended)
        assert daemon.variables(2, env) == variables
        [after] = members(pipes)
        assert after != before
    finally:
        daemon.close()
    assert (members(pipes), said) == ([], [])


def test_daemon_that_does_not_quit_is_killed(
    env: dict[str, str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = PrivateDaemon(said.append)
    pipes = Path(daemon.variables(2, env | {"FAKE_MPS": "stays"})[decision.PIPES])
    assert len(members(pipes)) == 1
    daemon.close()
    assert (members(pipes), pipes.exists()) == ([], False)


def test_failed_start_of_mps_is_reported_once(env: dict[str, str], said: list[str]) -> None:
    daemon = PrivateDaemon(said.append)
    assert daemon.variables(2, env | {"FAKE_MPS": "refuses"}) == {}
    assert daemon.variables(2, env | {"FAKE_MPS": "refuses"}) == {}
    daemon.close()
    why = f"nvidia-cuda-mps-control did not start: [fake] {fake_mps.REFUSAL}"
    assert said == [f"no MPS, so ranks take turns on the device: {why}"]


def test_unresponsive_mps_server_is_reported_before_ranks_start(
    env: dict[str, str], said: list[str], tmp_path: Path
) -> None:
    """The daemon starts its server at the first client: a client that only initialises CUDA tries it before the ranks."""
    source = tmp_path / "driver.c"
    source.write_text("int cuInit(unsigned flags) { return 805; }")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "libcuda.so.1", source], check=True)
    daemon = PrivateDaemon(said.append)
    assert daemon.variables(2, env | {"LD_LIBRARY_PATH": str(tmp_path)}) == {}
    daemon.close()
    begin = "no MPS, so ranks take turns on the device: nvidia-cuda-mps-control did not start: "
    assert said == [f"{begin}a client of it gets CUDA's error 805"]


def test_a_folder_whose_path_is_too_long_for_sockets(
    env: dict[str, str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("a" * 60)
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    daemon = PrivateDaemon(said.append)
    assert daemon.variables(2, env) == {}
    daemon.close()
    assert [sentence.rpartition("/")[2] for sentence in said] == [
        "pipes is too long for its sockets: set TMPDIR to a shorter one"
    ]
    assert list(place.iterdir()) == []


def test_running_daemon_is_used_and_unchanged(env: dict[str, str], said: list[str], tmp_path: Path) -> None:
    with fake_mps.running(tmp_path / "theirs", env["PATH"]) as pipes:
        daemon = PrivateDaemon(said.append)
        assert daemon.variables(2, env | {decision.PIPES: str(pipes)}) == {}
        daemon.close()
    assert said == []


_HOLDER = """
import os, signal, sys
from hvd_kernel.processes.mps.daemon import PrivateDaemon
print(PrivateDaemon(print).variables(2, os.environ)["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
sys.stdin.read()
"""


def test_daemon_ends_with_its_killed_starter(env: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _HOLDER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pipes = Path(holder.stdout.readline().strip())
        [pid] = members(pipes)
        ended = os.pidfd_open(pid)
        holder.kill()
        assert is_ready(ended, 30)
        os.close(ended)
    until(lambda: not pipes.parent.exists(), "its folder is removed")


# Who is asked for it, and what a plan says of it.


def test_line_without_mps_needs_another_cluster() -> None:
    running = ClusterSpec(n=2)
    without = requested_cluster(parse("%%hvdrun", "--no-mps"), running)
    assert without == ClusterSpec(n=2, mps="0")
    assert messages.change_of(running, without) == "no private MPS daemon"
    assert requested_cluster(parse("%%hvdrun", "-np 3"), without) == ClusterSpec(n=3, mps="0"), "as the ranks that run"
    assert not warm_ranks.is_plain(without)
    with pytest.raises(ConfigError, match=r"mps='1': write '0' for no private MPS daemon, or leave it out"):
        ClusterSpec(n=2, mps="1")


def test_plan_of_a_job_lists_ranks_sharing_devices() -> None:
    shared = [Replica("worker", number, slots=4, resources=Resources(gpus=2)) for number in range(2)]
    alone = Replica("chief", 0, slots=2, resources=Resources(gpus=2))
    what = "4 ranks of a host share 2 GPUs: they"
    spec = JobSpec("hostfile", replicas=(alone, *shared))
    said = as_text(plan(spec)).splitlines()[-1]
    assert said == f"MPS: {what} have a private daemon of MPS, where nvidia-cuda-mps-control is installed"
    spec = msgspec.structs.replace(spec, environment=(Variable("HVD_MPS", "0"),))
    assert plan(spec).mps == (f"{what} take turns (HVD_MPS=0)",)
    assert plan(JobSpec("hostfile", replicas=(alone,))).mps == ()
