"""Lifetime and ownership of processes and folders.

Terms.
  holder   the process that owns another process or a private folder; a process that outlives its holder is an orphan
  mark     identifies a process of this host for all time: pid, start time, PID namespace, boot
"""

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
_EXIT_S = 10.0  # for killed descendants to exit: one in an uninterruptible sleep (state D) may never do so
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Make Linux kill this process when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent exits."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exclude_memory_from_cores() -> None:
    """Exclude the memory of this process and its future children from core files, because it contains keys."""
    Path("/proc/self/coredump_filter").write_text("0")


def children(pid: int) -> list[int]:
    """Return the direct children of a process on this host."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += map(int, task.read_text().split())
        except OSError:
            continue  # the thread has just ended
    return pids


def kill_descendants() -> None:
    """Kill children until there are none, or give up after a while.

    Orphans of killed children become children of this process, a subreaper.
    """
    deadline = time.monotonic() + _EXIT_S
    while time.monotonic() < deadline:
        for pid in children(os.getpid()):
            kill(pid, signal.SIGKILL)
        try:
            exited, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not exited:
            time.sleep(0.001)  # there is no descriptor to wait on until grandchildren become children


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, unless it is gone or may not be signalled (a setuid child of a cell)."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    return stat_of(pid)[:1] in (["T"], ["t"])


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, from the state on; [] if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


# Ownership. A mark cannot be mistaken for another process's, even if the pid is reused.

HOLDER = "HVD_HOLDER"
"""Environment variable with the mark of the holder. Descendants inherit it."""

CLAIM = "holder"
"""Name of the file in a private folder with the mark of its holder."""


def mark(pid: int) -> str:
    """Return the mark of a living process."""
    return ":".join((str(pid), *_birth(pid), *_world()))


def is_gone(holder: str) -> bool:
    """Return whether a mark's process has certainly exited; False for marks of another boot or container."""
    pid, start, *world = [*holder.split(":"), "", ""]
    if tuple(world[:2]) != _world() or not pid.isdecimal():
        return False
    return _birth(int(pid)) != (start,)


def claim(*folders: Path) -> None:
    """Make this process the holder of folders."""
    for folder in folders:
        with os.fdopen(os.open(folder / CLAIM, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(mark(os.getpid()))


def holder_of(folder: Path) -> str:
    """Return the mark of a folder's holder; "" if it has none."""
    try:
        return (folder / CLAIM).read_text()
    except OSError:
        return ""


def notes(name: str, kind: type[N]) -> list[tuple[N, Path, str]]:
    """Return the notes in files of that name in this user's private folders: note, folder, mark of its holder.

    Notes of holders that are gone are left out, and notes of another version. ``kind``: the dataclass that a note
    contains as JSON.
    """
    folders = [folder for folder in Path(tempfile.gettempdir()).glob("hvd-*") if is_own(folder)]
    entries = [(_note(folder / name, kind), folder, holder_of(folder)) for folder in folders]
    return [(note, folder, holder) for note, folder, holder in entries if note is not None and not is_gone(holder)]


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user of the other end of a unix socket, as Linux reports them."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
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
    except (OSError, ValueError, TypeError):  # no note, or one of another version
        return None


def _birth(pid: int) -> tuple[str, ...]:
    """Return the start time of a process; () if it has exited, zombies included."""
    stat = stat_of(pid)
    return (stat[19],) if stat and stat[0] not in {"Z", "X"} else ()


def _world() -> tuple[str, str]:
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return namespace, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
