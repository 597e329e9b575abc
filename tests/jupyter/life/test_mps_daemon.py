"""A notebook's ranks that share a device: their private MPS daemon, from its start to its end. The daemon is a fake one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hvdtest import fake_mps
from hvdtest.cluster import until
from hvdtest.kernel import Kernel

from hvd_kernel.processes.lifetime import children
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.daemon import members

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.nightly]

SEEN = "%%hvdrun\nimport os\nstr(os.environ.get('CUDA_MPS_PIPE_DIRECTORY'))"


def device(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return the variables of a host with one device, where the fake daemon is installed."""
    return {"PATH": fake_mps.installed(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": "5", **more}


def pipes_of(kernel: Kernel) -> Path:
    [shown] = kernel.run(SEEN).shown
    return Path(shown.removeprefix("[0-1] ").strip("'"))


def supervisor_of(kernel: int) -> int:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(kernel)}
    return next(pid for pid, command in commands.items() if b"hvd_kernel.cluster.supervisor" in command)


def test_mps_daemon_from_start_over_respawn_to_stop(tmp_path: Path) -> None:
    with Kernel(tmp_path, env=device(tmp_path)) as kernel:
        rows = [row.split(maxsplit=2) for row in kernel.run("%hvd doctor").text().splitlines()]
        assert ["ok", "MPS", "a private daemon: 2 ranks share 1 device"] in rows
        kernel.run("%hvd start -np 2", timeout=120)
        pipes = pipes_of(kernel)
        [daemon] = members(pipes)
        # A killed rank takes it along.
        kernel.run("%%hvdrun\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)", allow_error=True)
        os.kill(daemon, signal.SIGKILL)
        until(lambda: not decision.answers(pipes), "it has died")
        kernel.run("%hvd respawn", timeout=120)
        assert pipes_of(kernel) == pipes
        assert decision.answers(pipes)
        said = kernel.run("%hvd start --no-mps", timeout=120).text()
        assert said == "no private MPS daemon: the ranks start again.\nranks 0-1 ready\n"
        assert not pipes.parent.exists()
        assert kernel.run(SEEN).shown == ["[0-1] 'None'"]
        kernel.run("%hvd stop")
        assert kernel.run("%hvd start -np 2", timeout=120).text() == "ranks 0-1 ready\n"
        last = pipes_of(kernel)
        assert decision.answers(last)
    assert not last.parent.exists()


@pytest.mark.parametrize("who", ["kernel", "supervisor"])
def test_mps_daemon_ends_with_the_killed_process(tmp_path: Path, who: str) -> None:
    with Kernel(tmp_path, env=device(tmp_path)) as kernel:
        kernel.run("%hvd start -np 2", timeout=120)
        pipes = pipes_of(kernel)
        assert len(members(pipes)) == 1
        os.kill(kernel.pid if who == "kernel" else supervisor_of(kernel.pid), signal.SIGKILL)
        until(lambda: not pipes.parent.exists(), "the daemon and its folder are gone")
        assert members(pipes) == []
        if who == "kernel":
            kernel.assert_nothing_left()


def test_failed_start_of_mps_is_reported_once(tmp_path: Path) -> None:
    with Kernel(tmp_path, env=device(tmp_path, FAKE_MPS="refuses")) as kernel:
        why = f"nvidia-cuda-mps-control did not start: [fake] {fake_mps.REFUSAL}"
        said = kernel.run("%hvd start -np 2", timeout=120).text()
        assert said == f"no MPS, so ranks take turns on the device: {why}\nranks 0-1 ready\n"
        assert kernel.run(SEEN).shown == ["[0-1] 'None'"]
