"""Watchdog of a private MPS daemon: ``python -P -m hvd_kernel.processes.mps.watchdog FOLDER``, started by daemon.py.

Its stdin closes when the process that holds the ranks exits, even by SIGKILL. Then it makes the daemon quit, kills the
remaining processes of it and its server, and removes the folder. PDEATHSIG cannot do that, because a daemon has forked
away from the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.lifetime import environment_of, kill
from hvd_kernel.processes.mps import decision

_QUIT_S = 2.0


def members(pipes: Path) -> list[int]:
    """Return the processes of this user that are the daemon of these pipes, or its server."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just exited
            is_own = entry.stat().st_uid == os.geteuid()
            if is_own and (entry / "comm").read_text().strip() == decision.COMMAND:
                pid = int(entry.name)
                pids += [pid] if environment_of(pid).get(decision.PIPES) == str(pipes) else []
    return pids


def lives(pipes: Path) -> bool:
    """Return whether the daemon of these pipes runs; its server alone does not count."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in members(pipes)]
    return decision.answers(pipes) or any(decision.CONTROL.encode() in _read(command) for command in commands)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has just exited
        return b""


def end(folder: Path) -> None:
    """Stop the daemon with this folder and its server, and remove the folder."""
    pipes = folder / "pipes"
    if (living := members(pipes)) and (control := shutil.which(decision.CONTROL)):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - NVIDIA's program
                [control],
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_QUIT_S,
                check=False,
            )
            _wait(living, _QUIT_S)
    for pid in members(pipes):
        kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _wait(pids: list[int], seconds: float) -> None:
    """Wait until processes have exited, for at most ``seconds`` each."""
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                is_ready(descriptor, seconds)
            finally:
                os.close(descriptor)


def main() -> None:
    """Wait for the end of stdin, and stop the daemon."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon must outlive the ranks, which the holder stops first
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
