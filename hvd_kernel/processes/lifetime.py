"""Lifetime of processes: who ends with whom, and whose a process or a folder is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import TypeVar

from hvd_kernel.processes.private_dir import is_own

N = TypeVar("N")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CREDENTIALS = struct.Struct("3i")  # pid, user, group
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def take_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dump_no_memory() -> None:
    """Keep this process's memory, and of what it starts from here on, out of core files: keys are in it."""
    Path("/proc/self/coredump_filter").write_text("0")


def children(pid: int) -> list[int]:
    """Return the direct children of a process on this host."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue  # the thread has just ended
    return found


def kill_descendants() -> None:
    """Kill children until there are none; orphans of the killed become children of this subreaper."""
    while True:
        for pid in children(os.getpid()):
            kill(pid, signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.001)  # between kill and its effect there is nothing to wait on for grandchildren


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_stopped(pid: int) -> bool:
    """Whether a process does nothing until it is continued, by a signal or a debugger."""
    return stat_of(pid)[:1] in (["T"], ["t"])


def stat_of(pid: int) -> list[str]:
    """Return what /proc tells of a process behind its name, from its state on; [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


# Whose a process or a folder is: a mark names its holder so that no other process, now or later, can be taken for it.

HOLDER = "HVD_HOLDER"
"""Environment variable with the mark of the process without which this one should not be; descendants inherit it."""

CLAIM = "holder"
"""Name of the file in a private folder that says whose it is."""


def mark(pid: int) -> str:
    """Return the mark of a living process: pid, start time, PID namespace, boot."""
    return ":".join((str(pid), *_birth(pid), *_world()))


def is_gone(holder: str) -> bool:
    """Whether a mark's process has certainly ended: a mark of another boot's or container's process says nothing."""
    pid, start, *world = [*holder.split(":"), "", ""]
    if tuple(world[:2]) != _world() or not pid.isdecimal():
        return False
    return _birth(int(pid)) != (start,)


def claim(*folders: Path) -> None:
    """Write into folders whose they are: this process's."""
    for folder in folders:
        with os.fdopen(os.open(folder / CLAIM, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(mark(os.getpid()))


def holder_of(folder: Path) -> str:
    """Return the mark of a folder's holder, "" where there is none."""
    try:
        return (folder / CLAIM).read_text()
    except OSError:
        return ""


def notes(name: str, kind: type[N]) -> list[tuple[N, Path, str]]:
    """Return what is noted in files of that name in this user's private folders: note, folder, mark of its holder.

    Only of holders that live. ``kind``: the dataclass that a note is, as JSON; one of another version is left out.
    """
    folders = [folder for folder in Path(tempfile.gettempdir()).glob("hvd-*") if is_own(folder)]
    found = [(_note(folder / name, kind), folder, holder_of(folder)) for folder in folders]
    return [(note, folder, holder) for note, folder, holder in found if note is not None and not is_gone(holder)]


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user of the other end of a unix socket, as the system knows them."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    return pid, user


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process of this user started; {} if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _note(file: Path, kind: type[N]) -> N | None:
    try:
        return kind(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):  # none; or of another version
        return None


def _birth(pid: int) -> tuple[str, ...]:
    """Return the start time of a process; () if it has ended, as a zombie has."""
    stat = stat_of(pid)
    return (stat[19],) if stat and stat[0] not in {"Z", "X"} else ()


def _world() -> tuple[str, str]:
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return namespace, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
