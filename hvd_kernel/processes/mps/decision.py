"""NVIDIA's Multi-Process Service (MPS): whether ranks that share a device get a private daemon, or why not (HVD_MPS).

Without MPS, processes that share a device take turns, in time slices; as clients of its server their kernels run
concurrently. This module uses the standard library alone; processes/mps/daemon.py starts and stops daemons.

Terms.
  private  a daemon for these ranks only, started before them and stopped with them
  running  a daemon that was started by others and that CUDA finds automatically: it is used as it is
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

from hvd_kernel.formatting.units import plural
from hvd_kernel.settings import gpus

CHOICE = "HVD_MPS"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
CONTROL = "nvidia-cuda-mps-control"
COMMAND = CONTROL[:15]
"""Prefix of the names of the daemon and of its server that Linux stores."""
_DEFAULT = Path("/tmp/nvidia-mps")  # noqa: S108 - CUDA's default; only read
_SOCKET = "control"


@dataclass(frozen=True)
class Mps:
    """The MPS mode of the ranks of a host, and the reason."""

    kind: Literal["private", "running", "none"]
    reason: str

    @property
    def sentence(self) -> str:
        """The mode and the reason for users."""
        names = {"private": "a private daemon", "running": "one that runs already", "none": "none"}
        return f"{names[self.kind]}: {self.reason}"


def decide(  # noqa: PLR0911 - a table, in order of precedence
    choice: str, ranks: int, devices: int, *, control: str | None, env: Mapping[str, str], running: str
) -> Mps:
    """Return the mode for a number of ranks of a host. Pure.

    Parameters
    ----------
    choice
        HVD_MPS: "0" for no private daemon.
    ranks, devices
        The number of ranks, and of the devices that they share.
    control
        The path of the control program; None: it is not installed.
    env
        The ranks' environment.
    running
        The folder of the pipes of a daemon that answers at CUDA's default location; "": none does.
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


def sharing(card: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> int:
    """Return how many ranks, this one included, may use a device of this rank, if each has its own agent. Pure.

    Parameters
    ----------
    card, cards
        The card of the rank's agent (``agent.card``), and those of all agents, with "machine" and "devices": the ones
        in CUDA_VISIBLE_DEVICES; None if that is not set, so the rank may use every device.
    """
    devices = card["devices"]
    neighbours = [other["devices"] for other in cards if other["machine"] == card["machine"]]
    return sum(devices is None or others is None or not set(devices).isdisjoint(others) for others in neighbours)


def inspect(ranks: int, env: Mapping[str, str]) -> Mps:
    """Return the mode for a number of ranks of this host in this environment."""
    devices = gpus.usable(env.get(gpus.CHOICE, "") or "auto", env)
    control = shutil.which(CONTROL, path=env.get("PATH"))
    running = _running(env) if devices else ""
    return decide(env.get(CHOICE, "") or "1", ranks, devices, control=control, env=env, running=running)


def answers(pipes: Path) -> bool:
    """Return whether a daemon listens on these pipes, by connecting like a client.

    NVIDIA documents sockets and named pipes, but not which of them the control file is.
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
    except OSError as error:  # exists, but is of another kind or another user's; a pipe without a reader gives ENXIO
        return error.errno != errno.ENXIO
    return True


def for_daemon(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a daemon for clients with this one.

    A daemon that is started with device numbers renumbers the devices, so its clients' numbers would be wrong. It gets
    its clients' devices only if they are UUIDs; else it serves all devices, and clients choose.
    """
    names = gpus.visible(env) or []
    by_uuid = bool(names) and all(name.startswith(("GPU-", "MIG-")) for name in names)
    return {name: value for name, value in env.items() if by_uuid or name != gpus.VISIBLE}


def _running(env: Mapping[str, str]) -> str:
    pipes = Path(env.get(PIPES) or _DEFAULT)
    return str(pipes) if answers(pipes) else ""
