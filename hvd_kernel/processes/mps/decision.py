"""NVIDIA's Multi-Process Service (MPS): whether ranks that share a device get a private daemon, or why not (HVD_MPS).

Without it processes that share a device take turns, in time slices; as clients of its server their kernels run side by
side. A shared leaf of the standard library: nothing here starts or ends a daemon (processes/mps/daemon.py does).

Terms.
  private  a daemon of these ranks' own, started before them and ended with them
  running  one that somebody else has started and that CUDA finds by itself: it is used, and never touched
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hvd_kernel.formatting.plural import plural
from hvd_kernel.settings import gpus

CHOICE = "HVD_MPS"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
CONTROL = "nvidia-cuda-mps-control"
COMMAND = CONTROL[:15]
"""What Linux keeps of the names of the daemon and of its server."""
_DEFAULT = Path("/tmp/nvidia-mps")  # noqa: S108 - where CUDA looks; only looked at
_SOCKET = "control"


@dataclass(frozen=True)
class Mps:
    """What ranks of a host have of it, and why."""

    kind: Literal["private", "running", "none"]
    why: str

    @property
    def sentence(self) -> str:
        """As people read it."""
        names = {"private": "a private daemon", "running": "one that runs already", "none": "none"}
        return f"{names[self.kind]}: {self.why}"


def decide(  # noqa: PLR0911 - a table, read from above
    choice: str, ranks: int, devices: int, *, control: str | None, env: Mapping[str, str], running: str
) -> Mps:
    """Return what so many ranks of a host have. Pure.

    Parameters
    ----------
    choice
        HVD_MPS: "0" for no private daemon.
    ranks, devices
        How many ranks take turns among how many devices.
    control
        The path of its control program; None: it is not installed.
    env
        The ranks' environment.
    running
        The folder of the pipes of a daemon that answers where CUDA looks for one; "": none does.
    """
    if not devices:
        return Mps("none", "there is no GPU for the ranks")
    if running:
        return Mps("running", f"its pipes are in {running}")
    if env.get(PIPES):
        return Mps("none", f"{PIPES}={env[PIPES]} is set and no daemon answers there")
    if choice == "0":
        return Mps("none", f"--no-mps, or {CHOICE}=0")
    if ranks <= devices:
        return Mps("none", "each rank has a device of its own")
    if control is None:
        return Mps("none", f"{CONTROL} is not installed")
    return Mps("private", f"{ranks} ranks share {plural(devices, 'device')}")


def sharing(own: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> int:
    """Return how many ranks may use a device of this one's, itself among them, where each has an agent. Pure.

    Parameters
    ----------
    own, cards
        What the rank's agent has said of itself (``agent.card``), and what all agents have: "machine", and "devices",
        which CUDA_VISIBLE_DEVICES names; None: it names none, so it may use every device.
    """
    mine = own["devices"]
    beside = [card["devices"] for card in cards if card["machine"] == own["machine"]]
    return sum(mine is None or each is None or not set(mine).isdisjoint(each) for each in beside)


def look(ranks: int, env: Mapping[str, str]) -> Mps:
    """Return what so many ranks of this host have in this environment."""
    devices = gpus.usable(env.get(gpus.CHOICE, "") or "auto", env)
    control = shutil.which(CONTROL, path=env.get("PATH"))
    running = _running(env) if devices else ""
    return decide(env.get(CHOICE, "") or "1", ranks, devices, control=control, env=env, running=running)


def answers(pipes: Path) -> bool:
    """Tell whether a daemon listens there: a client comes and goes, which it sees all day.

    NVIDIA documents sockets and named pipes, and not which of them this is.
    """
    control = pipes / _SOCKET
    try:
        if stat.S_ISFIFO(control.stat().st_mode):
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
            return True
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.fspath(control))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        return False
    except OSError as error:  # it is there, in another manner, or for others; a pipe that nobody reads gives ENXIO
        return error.errno != errno.ENXIO
    return True


def for_daemon(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a daemon for clients with this one.

    A daemon that is started with device numbers numbers the devices anew, and its clients' own numbers would be wrong.
    It gets what its clients see only where that is named by UUID; else it serves all devices, and clients choose.
    """
    names = gpus.visible(env) or []
    by_uuid = bool(names) and all(name.startswith(("GPU-", "MIG-")) for name in names)
    return {name: value for name, value in env.items() if by_uuid or name != gpus.VISIBLE}


def _running(env: Mapping[str, str]) -> str:
    pipes = Path(env.get(PIPES) or _DEFAULT)
    return str(pipes) if answers(pipes) else ""
