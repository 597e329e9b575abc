"""A fake of NVIDIA's MPS control daemon: a program that starts, answers and quits as nvidia-cuda-mps-control does.

``-d`` makes the control socket and the file with the process's number in CUDA_MPS_PIPE_DIRECTORY, writes its log into
CUDA_MPS_LOG_DIRECTORY, and returns when it listens; without arguments it passes on what stands on its stdin. There is no
server and no GPU. FAKE_MPS: ``refuses`` to start, or ``stays`` when it is told to quit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.daemon import members

REFUSAL = "Startup: the device is in exclusive mode"
_PROGRAM = r"""#!{python} -S
import os, socket, sys

pipes, logs = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
manner, path = os.environ.get("FAKE_MPS", ""), os.path.join(pipes, "control")


def log(text):
    with open(os.path.join(logs, "control.log"), "a") as file:
        file.write("[fake] " + text + "\n")


if sys.argv[1:] != ["-d"]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(sys.stdin.buffer.read())
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
    sys.exit(0)
if manner == "refuses":
    log("{refusal}")
    sys.exit(1)
if os.path.exists(path):
    os.unlink(path)
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen()
ready, told = os.pipe()
if os.fork():
    os.close(told)
    os.read(ready, 1)
    os._exit(0)
os.close(ready)
os.setsid()
if os.fork():
    os._exit(0)
with open(os.path.join(pipes, "nvidia-cuda-mps-control.pid"), "w") as file:
    file.write(str(os.getpid()))
log("Startup CUDA_VISIBLE_DEVICES=" + os.environ.get("CUDA_VISIBLE_DEVICES", "(not set)"))
os.close(told)
while True:
    client, _ = listening.accept()
    with client:
        said = client.recv(100)
    if said == b"quit\n" and manner != "stays":
        log("Exit")
        os.unlink(path)
        sys.exit(0)
"""


def installed(folder: Path) -> str:
    """Put it into a folder; return the PATH that finds it there."""
    folder.mkdir(exist_ok=True)
    program = folder / decision.CONTROL
    program.write_text(_PROGRAM.replace("{python}", sys.executable).replace("{refusal}", REFUSAL))
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@contextmanager
def running(folder: Path, path: str) -> Iterator[Path]:
    """Run a foreign daemon and yield the folder of its pipes; it must still run at the end."""
    folder.mkdir()
    env = {"PATH": path, decision.PIPES: str(folder), decision.LOGS: str(folder)}
    subprocess.run([decision.CONTROL, "-d"], env=env, check=True, executable=folder.parent / "bin" / decision.CONTROL)
    before = members(folder)
    try:
        yield folder
        assert members(folder) == before
        assert len(before) == 1
        assert decision.answers(folder)
    finally:
        for pid in members(folder):
            os.kill(pid, signal.SIGKILL)
