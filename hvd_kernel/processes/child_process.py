"""Child process of an agent: its pipes, its end (pidfd), its signals and its limits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

from hvd_kernel.processes.channel.control_channel import CHUNK, is_ready
from hvd_kernel.processes.lifetime import children, die_with_parent
from hvd_kernel.processes.resources.limits import Confinement, Limits

_PIPE = 1 << 20  # bytes that a pipe can hold
_DESCRIPTORS = ("PMI_FD",)  # by which MPICH's and Intel's MPI reach what has started them

Stream = Literal["stdout", "stderr"]


class ChildProcess:
    """A process that dies with its parent.

    Parameters
    ----------
    command, env, cwd
        As in ``subprocess``.
    stdin
        A descriptor, or PIPE: what ``give`` takes.
    stdout, stderr
        Descriptors, or PIPE: what ``read`` returns.
    slot, limits
        Which one it is on its host, and what it may use.
    new_session
        Whether signals go to all that it forks, too.
    ties_itself
        Whether the program itself sees to it that it dies with its parent: necessary where a thread starts it, because
        nothing may be done between fork and exec in a process of several threads.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        slot: int = 0,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        new_session: bool = False,
        ties_itself: bool = False,
    ) -> None:
        self.limits = Confinement(slot, limits, children)
        self._popen = subprocess.Popen(  # noqa: S603 - the user's command, or our own module
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            pass_fds=[int((env or {})[name]) for name in _DESCRIPTORS if (env or {}).get(name, "").isdecimal()],
            preexec_fn=None if ties_itself else self._enter,  # noqa: PLW1509 - there is one thread here
        )
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.streams: dict[int, Stream] = {}  # descriptor -> which one, while it is open
        self._add_stream(self._popen.stdout, "stdout")
        self._add_stream(self._popen.stderr, "stderr")
        self.stdin = -1 if self._popen.stdin is None else self._popen.stdin.fileno()
        if self.stdin >= 0:
            os.set_blocking(self.stdin, False)
        self._has_group = new_session
        self._input = b""
        self._input_ends = False

    def _enter(self) -> None:
        die_with_parent()
        self.limits.enter()

    def _add_stream(self, pipe: IO[bytes] | None, name: Stream) -> None:
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            self.streams[pipe.fileno()] = name

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, waited for or not."""
        return self.pidfd < 0 or is_ready(self.pidfd)

    def wait(self) -> int:
        """Wait for its end; return its status as in ``subprocess``."""
        status = self._popen.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return status

    def signal(self, number: int) -> None:
        """Send a signal to it and, where it has a session of its own, to its group; it may be gone."""
        if self.pidfd < 0:
            return
        try:
            if self._has_group:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)
        except (ProcessLookupError, PermissionError):
            return

    def kill_group(self) -> None:
        """Kill what it has left of its session, after its own end."""
        if self._has_group:
            with suppress(ProcessLookupError, PermissionError):  # nothing is left
                os.killpg(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process takes no other signal

    @property
    def wants_input(self) -> bool:
        """True while bytes wait to be written to its stdin."""
        return self.stdin >= 0 and bool(self._input)

    def give(self, data: bytes) -> None:
        """Take bytes for its stdin; none: its end."""
        self._input += data
        self._input_ends |= not data
        if self._input_ends and not self._input:
            self._close_stdin()

    def feed(self) -> bool:
        """Write what waits, as much as it takes now; True when all of it is gone."""
        try:
            self._input = self._input[os.write(self.stdin, self._input) :]
        except BlockingIOError:
            return False
        except OSError:  # it does not read any more: what it was sent is lost
            self._close_stdin()
            return False
        if not self._input and self._input_ends:
            self._close_stdin()
        return not self._input

    def _close_stdin(self) -> None:
        if self.stdin >= 0 and self._popen.stdin is not None:
            self._popen.stdin.close()
        self.stdin = -1

    def read(self, descriptor: int) -> bytes | None:
        """Return what it wrote; nothing when there is nothing now; None at the end, which is noted."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            del self.streams[descriptor]
            return None
        return data

    def rest(self, descriptor: int) -> Iterator[bytes]:
        """Yield what is in a pipe, once; a process that it left behind may keep it open, and go on writing."""
        for _ in range(_PIPE // CHUNK):
            data = self.read(descriptor)
            if not data:
                return
            yield data
