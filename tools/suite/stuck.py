"""Processes that wait: the processes below a process, each with its state, what the kernel has it wait for, and its command."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def below(pid: int) -> list[int]:
    """A process and all its living descendants, parents first, and every process of the same session."""
    parents: dict[int, int] = {}
    same_session: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            if int(fields[3]) == pid:
                same_session.append(int(entry.name))
    found = [pid] if pid in parents else []
    for each in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == each and child not in found]
    return found + [each for each in same_session if each not in found]


def describe(pid: int) -> str:
    """One line; empty where the process has ended meanwhile."""
    place = Path("/proc") / str(pid)
    try:
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:160]
        waits = sorted({_waits(thread) for thread in (place / "task").iterdir()})
    except OSError:
        return ""
    rank = _variable(place, "HOROVOD_RANK")
    who = f"rank {rank}, process {pid}" if rank else f"process {pid}"
    return f"  {who}, state {state}, waits in {', '.join(waits)}: {command}"


def _waits(thread: Path) -> str:
    with suppress(OSError):
        name = (thread / "wchan").read_text()
        return name if name not in ("", "0") else "user code"
    return "?"


def _variable(place: Path, name: str) -> str:
    with suppress(OSError):
        for entry in (place / "environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{name}=".encode()):
                return entry.decode(errors="replace").partition("=")[2]
    return ""


def report(pid: int) -> str:
    """A line for each process below ``pid``."""
    return "\n".join(filter(None, (describe(each) for each in below(pid))))


def end(pid: int) -> None:
    """Kill a process and everything below it, children first, so that none is left without its parent."""
    for each in reversed(below(pid)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
