"""A real Slurm on this machine, of Debian's packages: two nodes that are daemons here. As root, since tasks are started for users. And a fake srun.

with Slurm(folder) as slurm:
    subprocess.run(["srun", "-N2", "-n4", "hostname"], env={**os.environ, **slurm.variables})
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from hvdtest.launch import free_port

NODES = ("n1", "n2")
FAKE_SRUN = """
# srun of a machine without Slurm: starts the tasks of one step here, with the variables that Slurm gives them.
import os, subprocess, sys
count = int(sys.argv[1].removeprefix("-n"))
step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node[1-1]", "SLURM_NTASKS": str(count)}
tasks = [subprocess.Popen(sys.argv[2:], env={**os.environ, **step, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)})
         for i in range(count)]
sys.exit(max(task.wait() for task in tasks))
"""
_NAMED = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'  # ranks of several nodes meet at the first one's name
PATIENCE_S = 60.0
CONF = """
ClusterName=hvdtest
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeAddr=127.0.0.1 Port=[{ports}] CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not() -> str:
    """Return why Slurm cannot be started here; empty if it can."""
    missing = [
        program for program in ("munged", "slurmctld", "slurmd", "srun", "unshare") if shutil.which(program) is None
    ]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge"
    return "" if os.getuid() == 0 else "only root's slurmd starts tasks"


def _ports() -> list[int]:
    return sorted(free_port() for _ in NODES)


class Slurm:
    """Runs until it is closed; ``variables`` lead srun to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        for made in ("state", *NODES):
            (folder / made).mkdir()
        (folder / "slurm.conf").write_text(
            CONF.format(port=free_port(), folder=folder, ports=",".join(map(str, _ports())))
        )
        (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(NODES)}\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)

    def __enter__(self) -> Self:
        own = [f"--{name}={self._folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        own[0] = f"--socket={self._folder}/munge.sock"
        try:
            self._start("munged", "--foreground", "--force", f"--key-file={self._folder}/munge.key", *own)
            self._await((self._folder / "munge.sock").exists)
            self._start("slurmctld", "-D")
            for name in NODES:
                apart = [
                    "unshare",
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    _NAMED,
                    "sh",
                    f"{self._folder}/hosts",
                ]
                self._start(*apart, "slurmd", "-D", "-N", name)
            self._await(lambda: self._states() == ["idle"] * len(NODES))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._await(
                lambda: self._states() == ["idle"] * len(NODES)
            )  # a step outlives the daemons that it reports to
        finally:
            self.close()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(60)

    def _start(self, *command: str) -> None:
        with (self._folder / "log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(command, env={**os.environ, **self.variables}, stdout=log, stderr=log)
            )

    def _states(self) -> list[str]:
        command = ["sinfo", "--noheader", "--Node", "--format=%t"]
        asked = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, check=False
        )
        return asked.stdout.split()

    def _await(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            log = (self._folder / "log").read_text(errors="replace")
            assert all(daemon.poll() is None for daemon in self._daemons), log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)  # the daemons offer no event to wait for
