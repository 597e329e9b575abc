"""Child process of an agent: its pipes, its exit (pidfd), its signals and its limits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

from hvd_kernel.processes.channel.control_channel import CHUNK, is_ready
from hvd_kernel.processes.lifetime import children, die_with_parent
from hvd_kernel.processes.limits import Confinement, Limits

_PIPE = 1 << 20  # bytes that a pipe can hold
_DESCRIPTORS = ("PMI_FD",)  # connects MPICH and Intel MPI to their starter

Stream = Literal["stdout", "stderr"]


class ChildProcess:
    """A process that dies with its parent.

    Parameters
    ----------
    command, env, cwd
        As in ``subprocess``.
    stdin
        A descriptor, or PIPE for ``write``.
    stdout, stderr
        Descriptors, or PIPE for ``read``.
    slot, limits
        Its number on its host, and its limits.
    new_session
        True if signals are to reach all processes that it forks, too.
    ties_itself
        True if the program itself arranges to die with its parent: necessary if a thread starts it, because a process
        with several threads must not run code between fork and exec.
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
        self.streams: dict[int, Stream] = {}  # open descriptors
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
        """True if it has exited, reaped or not."""
        return self.pidfd < 0 or is_ready(self.pidfd)

    def wait(self) -> int:
        """Wait until it has exited; return its status as in ``subprocess``."""
        status = self._popen.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return status

    def signal(self, number: int) -> None:
        """Send a signal to it or, if it has its own session, to its process group; it may be gone."""
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
        """Kill the remaining processes of its group, after its exit."""
        if self._has_group:
            with suppress(ProcessLookupError, PermissionError):  # the group is empty
                os.killpg(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Send it SIGTERM, and continue it if it is stopped."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM

    @property
    def has_unwritten(self) -> bool:
        """True while bytes wait to be written to its stdin."""
        return self.stdin >= 0 and bool(self._input)

    def write(self, data: bytes) -> None:
        """Queue bytes for its stdin; no bytes: close it after the queued ones."""
        self._input += data
        self._input_ends |= not data
        if self._input_ends and not self._input:
            self._close_stdin()

    def flush(self) -> bool:
        """Write queued bytes, as many as it accepts now; return whether all are written."""
        try:
            self._input = self._input[os.write(self.stdin, self._input) :]
        except BlockingIOError:
            return False
        except OSError:  # it has closed its stdin: the bytes are lost
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
        """Return the available output; b"" if there is none now; None at its end, after which the stream is removed."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            del self.streams[descriptor]
            return None
        return data

    def rest(self, descriptor: int) -> Iterator[bytes]:
        """Yield the current content of a pipe; a process that it has forked may keep it open and continue to write."""
        for _ in range(_PIPE // CHUNK):
            data = self.read(descriptor)
            if not data:
                return
            yield data
