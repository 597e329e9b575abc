"""One rank's process as its agent holds it: its pipes, its end, its signals."""

from __future__ import annotations

import os
import subprocess
from typing import Literal

from hvd_kernel.processes.channel.messages import RankPlan, StartRanks
from hvd_kernel.processes.lifetime import children, die_with_parent
from hvd_kernel.processes.resources.limits import Confinement

_CHUNK = 1 << 16
_DESCRIPTORS = ("PMI_FD",)  # by which MPICH's and Intel's MPI reach what has started them


class Rank:
    """One rank's process, in a session of its own."""

    def __init__(self, one: RankPlan, plan: StartRanks, env: dict[str, str]) -> None:
        listens = one.reads_stdin
        self.number = one.rank
        self.confined = Confinement(one.slot, one.limits, children)
        self.process = subprocess.Popen(  # noqa: S603 - the user's command
            plan.command,
            cwd=plan.cwd,
            env=env,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[int(env[name]) for name in _DESCRIPTORS if env.get(name, "").isdecimal()],
            preexec_fn=self._enter,  # noqa: PLW1509 - there is one thread here
        )
        self.life = os.pidfd_open(self.process.pid)
        self.ended = False
        self.streams: dict[int, Literal["stdout", "stderr"]] = {}
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.streams[self.process.stdout.fileno()] = "stdout"
        self.streams[self.process.stderr.fileno()] = "stderr"
        for fd in self.streams:
            os.set_blocking(fd, False)
        self.input = self.process.stdin.fileno() if self.process.stdin is not None else -1
        if listens:
            os.set_blocking(self.input, False)
        self._waiting = b""
        self._input_ends = False

    def _enter(self) -> None:
        die_with_parent()
        self.confined.enter()

    @property
    def hungry(self) -> bool:
        """True while bytes wait to be written to its stdin."""
        return self.input >= 0 and bool(self._waiting)

    def give(self, data: bytes) -> None:
        """Take bytes for its stdin; none: its end."""
        self._waiting += data
        self._input_ends |= not data
        if self._input_ends and not self._waiting:
            self._close_input()

    def feed(self) -> bool:
        """Write what waits; True when all of it is gone."""
        try:
            self._waiting = self._waiting[os.write(self.input, self._waiting) :]
        except BlockingIOError:
            return False
        except OSError:  # it does not read any more: what it was sent is lost
            self._close_input()
            return False
        if not self._waiting and self._input_ends:
            self._close_input()
        return not self._waiting

    def _close_input(self) -> None:
        if self.input >= 0 and self.process.stdin is not None:
            self.process.stdin.close()
        self.input = -1

    def read(self, fd: int) -> bytes | None:
        """Return what it wrote; nothing when there is nothing now; None at the end, which is noted."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            del self.streams[fd]
            return None
        return data

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
