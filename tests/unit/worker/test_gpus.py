"""Values of --gpus: the resulting environment of a rank, and the messages of refusals. No GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hvdtest.launch import clean_environment
from hvdtest.magic_lines import parse

from hvd_kernel.cluster import Session, launcher
from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.launch.cli import flags as hvdrun_flags
from hvd_kernel.magics import cluster_manager, cluster_request, messages
from hvd_kernel.magics.cluster_request import requested_cluster
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import agent, leftovers
from hvd_kernel.processes.channel.messages import StartRanks
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import gpus
from hvd_kernel.worker import devices


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a host with four GPUs, according to its files."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.delenv(gpus.CHOICE, raising=False)


@pytest.fixture
def none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a GPU."""
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.delenv(gpus.CHOICE, raising=False)


# What is written.


@pytest.mark.parametrize(
    ("text", "choice"), [("auto", "auto"), ("all", "all"), ("none", "none"), ("3", "3"), (" 2, 00 ", "2,0")]
)
def test_accepted_values(text: str, choice: str) -> None:
    assert gpus.checked(text) == choice
    assert parse("%%hvdrun", f"--gpus '{text}'") == Options(gpus=choice)
    assert hvdrun_flags.parse(["-np", "2", "--gpus", text, "true"]).env == {"HVD_GPUS": choice}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1,0", "0,1,0: device 0 is named twice: name it once"),
        ("1,01", "device 1 is named twice"),
        ("0-1", "0-1: '0-1' is not a device number: write 0,1 or auto or all or none"),
        ("0,all", "'all' is not a device number"),
        ("-1", "'-1' is not a device number"),
        ("²", "'²' is not a device number"),
        ("1234567", "'1234567' is not a device number"),
        ("cuda:0", "'cuda:0' is not a device number"),
    ],
)
def test_invalid_calls_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gpus.checked(text)
    assert str(caught.value).startswith(f"--gpus {text}: ")
    assert words in str(caught.value)
    with pytest.raises(UsageError) as caught_there:
        parse("%%hvdrun", f"--gpus={text}")
    assert words in str(caught_there.value)
    with pytest.raises(UsageError) as caught_at_hvdrun:
        hvdrun_flags.parse(["-np", "2", f"--gpus={text}", "true"])
    assert words in str(caught_at_hvdrun.value)
    with pytest.raises(ConfigError, match=r"--gpus"):
        ClusterSpec(2, gpus=text)


# What a process gets.


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({}, {}),
        ({"HVD_GPUS": "auto"}, {}),
        ({"HVD_GPUS": ""}, {}),
        ({"HVD_GPUS": "none"}, {"CUDA_VISIBLE_DEVICES": "-1"}),
        ({"HVD_GPUS": "2,0"}, {"CUDA_VISIBLE_DEVICES": "2,0"}),
        # What is hidden already stays hidden, and the rest is numbered from 0, as CUDA does.
        ({"HVD_GPUS": "auto", "CUDA_VISIBLE_DEVICES": "3,1"}, {"CUDA_VISIBLE_DEVICES": "3,1"}),
        ({"HVD_GPUS": "1", "CUDA_VISIBLE_DEVICES": "3,1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"HVD_GPUS": "1,0", "CUDA_VISIBLE_DEVICES": "GPU-8a, GPU-9b"}, {"CUDA_VISIBLE_DEVICES": "GPU-9b,GPU-8a"}),
        ({"HVD_GPUS": "none", "CUDA_VISIBLE_DEVICES": "3,1"}, {"CUDA_VISIBLE_DEVICES": "-1"}),
        ({"HVD_GPUS": "all", "CUDA_VISIBLE_DEVICES": "3"}, {}),
    ],
)
@pytest.mark.usefixtures("four")
def test_variables_for_cuda(given: dict[str, str], got: dict[str, str]) -> None:
    env = {"PATH": "/bin", **given}
    gpus.apply_choice(env)
    assert env == {"PATH": "/bin", **got}, "and nothing is left that would be counted again from there"


@pytest.mark.parametrize(
    ("choice", "visible", "words"),
    [
        ("4", None, "--gpus 4: device 4 is not there: there are devices 0 to 3 on this host; name others, or auto."),
        ("0,9,7", None, "--gpus 0,9,7: device 9 is not there"),
        ("1", "2", "device 1 is not there: there are devices 0 to 0 among those of CUDA_VISIBLE_DEVICES=2"),
        ("0", "-1", "there is no GPU among those of CUDA_VISIBLE_DEVICES=-1; write --gpus none or leave it out."),
        ("0", "", "there is no GPU among those of CUDA_VISIBLE_DEVICES="),
        ("1", "0,-1,2", "there are devices 0 to 0"),
    ],
)
@pytest.mark.usefixtures("four")
def test_missing_devices_are_refused(choice: str, visible: str | None, words: str) -> None:
    env = {"HVD_GPUS": choice} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    with pytest.raises(ConfigError) as caught:
        gpus.apply_choice(env)
    assert words in str(caught.value)


@pytest.mark.usefixtures("none")
def test_host_without_a_gpu_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"device 0 is not there: there is no GPU on this host; write --gpus none"):
        gpus.apply_choice({"HVD_GPUS": "0"})
    env: dict[str, str] = {"HVD_GPUS": "all"}
    gpus.apply_choice(env)
    assert env == {}


def test_undetectable_devices_are_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dxg").touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    env = {"HVD_GPUS": "7"}
    gpus.apply_choice(env)
    assert (gpus.count(), env) == (None, {"CUDA_VISIBLE_DEVICES": "7"})


# Who hands it on.


@pytest.mark.usefixtures("four")
def test_the_cluster_starts_as_many_ranks_as_there_are_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_manager.os, "sched_getaffinity", lambda _: set(range(64)))
    assert [cluster_request.default_ranks(choice) for choice in ("", "auto", "all", "0,2", "none")] == [4, 4, 4, 2, 4]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3")
    assert [cluster_request.default_ranks(choice) for choice in ("auto", "all", "0,2")] == [3, 4, 2]
    monkeypatch.setenv("HVD_GPUS", "1")
    assert (cluster_request.default_ranks(), cluster_request.default_ranks("all")) == (1, 4)


def test_other_devices_are_another_cluster() -> None:
    running = ClusterSpec(n=2, gpus="0")
    assert requested_cluster(Options(), running) == running
    assert requested_cluster(Options(gpus="none"), running) == ClusterSpec(n=2, gpus="none")
    assert messages.change_of(running, ClusterSpec(n=2, gpus="none")) == "other GPUs"


@pytest.mark.usefixtures("four")
def test_cell_overrides_the_devices_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_GPUS", "1")
    assert launcher.possible(ClusterSpec(1))[1] == "1"
    assert launcher.possible(ClusterSpec(1, gpus="auto"))[1] == "auto"
    monkeypatch.setenv("HVD_GPUS", "one")
    with pytest.raises(ConfigError, match="'one' is not a device number"):
        launcher.possible(ClusterSpec(1))


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("others", "shown", "seen"),
    [(0, None, None), (1, None, "1,2,3,0"), (6, None, "2,3,0,1"), (8, None, None), (1, "5,7", "7,5"), (1, "5", "5")],
)
def test_second_notebook_starts_with_the_free_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: int, shown: str | None, seen: str | None
) -> None:
    looks: list[int] = []
    started: list[dict[str, str]] = []
    monkeypatch.setattr(leftovers, "other_ranks", lambda own: looks.append(own) or others)
    monkeypatch.setattr(launcher, "spawn", lambda *_, env, **__: (None, started.append(env)))
    monkeypatch.setattr(launcher, "shared_memory_folder", lambda _: Path(tempfile.mkdtemp()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    Session.check(ClusterSpec(2))
    assert looks == [], "a look through all processes is for a start alone"
    launcher.begun(ClusterSpec(2))
    assert looks == [os.getpid()] * (shown != "5"), "once, and not where all would share one device"
    launcher.begun(ClusterSpec(2, gpus="0"))
    env, chosen = started
    gpus.apply_choice(env)
    assert env.get("CUDA_VISIBLE_DEVICES") == seen
    assert chosen["HVD_GPUS"] == "0", "what the user chooses stays"


@pytest.mark.usefixtures("four")
def test_other_hosts_detect_their_own_devices(tmp_path: Path) -> None:
    far = ClusterSpec(2, hosts="a-host-that-is-not-this-one:2", gpus="9")
    assert launcher.possible(far)[1] == "9"
    assert "-x HVD_GPUS" in " ".join(launcher.mpi_arguments(far, tmp_path))
    with pytest.raises(ConfigError, match="device 9 is not there"):
        launcher.possible(ClusterSpec(2, gpus="9"))


@pytest.mark.usefixtures("four")
def test_agents_assign_devices_to_ranks_of_mpi() -> None:
    plan = StartRanks(command=["true"], cwd="/", env={"HVD_GPUS": "1"}, ranks=[])
    assert agent._environment(plan) == {"HVD_GPUS": "1"}
    env = agent._environment(msgspec.structs.replace(plan, ranks_on_host=2))
    assert {name: env.get(name) for name in ("HVD_GPUS", "CUDA_VISIBLE_DEVICES")} == {
        "HVD_GPUS": None,
        "CUDA_VISIBLE_DEVICES": "1",
    }


# What a rank has, in a process of its own.

_RANK = """
import json, os, sys
from hvd_kernel.settings import gpus
gpus.count = lambda: 4
from hvd_kernel.worker import devices
devices.apply_choice()
kept_away = "torch" not in sys.modules
named = [devices.described(f"cuda:{turn}") for turn in range(2)]
print(json.dumps([kept_away, os.environ.get("CUDA_VISIBLE_DEVICES"), named]))
"""


def rank_with(**env: str) -> subprocess.CompletedProcess[str]:
    """Run the beginning of a rank on a host with four devices."""
    return subprocess.run(
        [sys.executable, "-P", "-c", _RANK], env=clean_environment(**env), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("choice", "visible", "described"),
    [
        ("auto", None, ["cuda:0", "cuda:1"]),
        ("2,3", "2,3", ["cuda:0 (GPU 2)", "cuda:1 (GPU 3)"]),
        ("0,2", "0,2", ["cuda:0", "cuda:1 (GPU 2)"]),
        ("none", "-1", ["cuda:0", "cuda:1"]),
    ],
)
def test_visible_devices_are_set_before_torch_loads(choice: str, visible: str | None, described: list[str]) -> None:
    done = rank_with(HVD_GPUS=choice)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, visible, described]


@pytest.mark.parametrize(
    ("there", "found"), [(4, ["cuda:0", "cuda:1", "cuda:2"]), (2, ["cuda:0", "cuda:1", "cuda:0"]), (0, ["cpu"] * 3)]
)
def test_devices_are_assigned_in_turn(there: int, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    assert [str(devices.device("torch", rank)) for rank in range(3)] == found


def test_rank_without_its_device_exits_with_one_line() -> None:
    done = rank_with(HVD_GPUS="0,4")
    assert (done.returncode, done.stdout) == (1, "")
    said = "--gpus 0,4: device 4 is not there: there are devices 0 to 3 on this host; name others, or auto.\n"
    assert done.stderr == said


def test_named_devices_invisible_to_torch_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(devices, "_requested", (0, 1))
    words = r"^--gpus 0,1: torch \S+ sees 0 of these 2 devices: install a torch with CUDA that fits the driver"
    with pytest.raises(ConfigError, match=words):
        (devices.device("torch", 0)("0,,1,", "0,1"),)
