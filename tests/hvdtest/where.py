"""Python stacks of a kernel, its supervisor and its ranks, taken from outside when a test hangs.

Terms.
  tag     a word in the environment of a kernel and all its descendants, which identifies them
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hvdtest.surface import room

INSIDE = Path(__file__).parent / "inside"
WRITTEN_S = 5.0  # a process writes its stacks at once, on a busy machine later
_HELPERS = ("zmq/utils/garbage.py", "ipykernel/parentpoller.py", "ipykernel/heartbeat.py", "IPython/core/history.py")
HEADING = "where the kernel and its ranks are:"


class Silence(AssertionError):
    """The event that a test waited for did not happen."""


def traced(folder: Path) -> dict[str, str]:
    """Return an environment in which Python processes write their stacks on request."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, (str(INSIDE), str(INSIDE.parents[1]), os.environ.get("PYTHONPATH", ""))))
    return {"HVD_TEST_STACKS": str(folder), "PYTHONPATH": path}


def tagged(tag: str) -> dict[int, str]:
    """Return the command lines of living processes with the tag, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if tag.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
        except OSError:
            continue
    return found


def stacks(tag: str, folder: Path) -> str:
    """Return the stacks of every process with the tag, outermost frame first."""
    told = []
    for pid in sorted(tagged(tag)):
        with suppress(OSError):
            told.append(f"process {pid}, {room(pid)}, {_state(pid)}\n{_written(pid, folder / str(pid))}")
    return f"{HEADING}\n" + ("\n".join(told) or "no process is left")


def hangs(error: BaseException) -> bool:
    """Return whether an error is a timeout of pytest or of a wait."""
    return isinstance(error, Silence) or (isinstance(error, pytest.fail.Exception) and "Timeout" in str(error.msg))


def add_stacks(error: BaseException, tag: str, folder: Path) -> None:
    """Add the stacks of all processes with the tag to a timeout, and kill them."""
    if isinstance(error, pytest.fail.Exception):
        if HEADING not in str(error.msg):
            error.msg = f"{error.msg}\n{stacks(tag, folder)}"
    elif HEADING not in str(error):
        error.args = (f"{error}\n{stacks(tag, folder)}",)
    end_all(tag)


def end_all(tag: str) -> None:
    """Kill every process with the tag."""
    while found := tagged(tag):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _state(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition("\t")[2] for line in lines if line.startswith("State:"))


def _listens(pid: int) -> bool:
    """Return whether a process handles the signal: it would kill other processes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.partition("\t")[2], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


def _written(pid: int, file: Path) -> str:
    if not file.exists() or not _listens(pid):
        return "  it is not a Python process that tells"
    before = file.stat().st_size
    os.kill(pid, signal.SIGUSR1)
    deadline, size = time.monotonic() + WRITTEN_S, before
    while time.monotonic() < deadline and (size == before or size != file.stat().st_size):
        size = file.stat().st_size
        time.sleep(0.05)
    lines = without_idle_threads(file.read_text().encode()[before:].decode())
    return "\n".join(f"  {line}" for line in lines) or f"  it has written nothing in {WRITTEN_S:g} s"


def without_idle_threads(text: str) -> list[str]:
    """Return the lines of a stack dump without helper threads that wait for work: CI shows only a failure's first lines."""
    threads = re.split(r"\n\s*\n", text.strip())
    return [line for thread in threads if not _is_idle(thread) for line in thread.splitlines()]


def _is_idle(thread: str) -> bool:
    heading, _, rest = thread.partition("\n")
    innermost = rest.partition("\n")[0]
    loop = "selectors.py" in innermost and "asyncio/base_events.py" in rest
    return heading.startswith("Thread") and (loop or any(helper in rest for helper in _HELPERS))
