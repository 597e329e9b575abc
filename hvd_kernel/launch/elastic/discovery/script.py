"""Discovery script of an elastic job: a program that a shell runs repeatedly, without blocking the launcher's loop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.source import LIMIT_S, Feed, parse_lines
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.outcome import exit_text
from hvd_kernel.processes.event_loop import EventLoop, Timer

_SHOWN = 2000  # characters of its stderr
_CHUNK = 1 << 16
_MAX_OUTPUT = 1 << 20
TOO_MUCH_OUTPUT = "it has written more than 1 MiB to {stream}; print one line per host: host, or host:slots"
"""Why a run has failed whose output would fill the launcher's memory."""


class DiscoveryScript:
    """Runs a user's program in a shell repeatedly, with ``interval_s`` from the end of a run to the next start."""

    def __init__(
        self,
        command: str,
        slots: int | None,
        interval_s: float,
        loop: EventLoop,
        feed: Feed,
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._command, self._slots, self._interval_s, self._limit_s = command, slots, interval_s, limit_s
        self._loop, self._feed = loop, feed
        self._run: _Run | None = None
        self._next: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start a run; its end schedules the next one."""
        self._next = None
        self._run = _Run(self._command, self._loop, self._on_end, self._limit_s)

    def close(self) -> None:
        """Stop the present run and start no further one."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
        if self._run is not None:
            self._run.close()
            self._run = None

    def _on_end(self, run: _Run) -> None:
        self._run = None
        run.close()
        self._feed(self._event(run))
        if not self._is_closed:
            self._next = self._loop.call_later(self._interval_s, self.start)

    def _event(self, run: _Run) -> Event:
        stderr = run.text[1].strip()[-_SHOWN:]
        if run.failure:
            return DiscoveryFailed(f"{self._command}: {run.failure}" + (f"; it said: {stderr}" if stderr else ""))
        try:
            return HostsFound(parse_lines(run.text[0], self._slots), stderr)
        except ConfigError as error:
            return DiscoveryFailed(f"{self._command}: {str(error).removesuffix('.')}")


class _Run:
    """One run of the script. ``failure``: why it has failed, empty if it has not."""

    def __init__(self, command: str, loop: EventLoop, on_end: Callable[[_Run], None], limit_s: float) -> None:
        self.failure = ""
        self._limit_s = limit_s
        self._loop, self._on_end = loop, on_end
        self._process = subprocess.Popen(  # noqa: S602 - the user's command, through a shell as Horovod's
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes: list[IO[bytes]] = [self._process.stdout, self._process.stderr]
        self._data = [b"", b""]
        for number, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            loop.add_reader(pipe.fileno(), partial(self._on_output, number))
        loop.add_reader(self._pidfd, self._on_exit)
        self._limit = loop.call_later(limit_s, self._timed_out)

    @property
    def text(self) -> list[str]:
        """Return its stdout and its stderr."""
        return [data.decode(errors="replace") for data in self._data]

    def close(self) -> None:
        """Kill the process group if it still runs, and close the pipes. Idempotent."""
        if self._pidfd < 0:
            return
        self._limit.cancel()
        for number, pipe in enumerate(self._pipes):
            self._read(number)
            self._loop.remove_reader(pipe.fileno())
            pipe.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _on_output(self, number: int) -> None:
        self._read(number)
        if self.failure:
            self._on_end(self)

    def _read(self, number: int) -> None:
        descriptor = self._pipes[number].fileno()
        with suppress(BlockingIOError):
            while data := os.read(descriptor, _CHUNK):
                self._data[number] += data
                if len(self._data[number]) > _MAX_OUTPUT:
                    # Stop reading: a program that writes faster than this loop reads would never let it end.
                    self.failure = self.failure or TOO_MUCH_OUTPUT.format(stream=("stdout", "stderr")[number])
                    return
            self._loop.remove_reader(descriptor)

    def _timed_out(self) -> None:
        self.failure = f"it has not ended within {self._limit_s:g} s"
        self._on_end(self)

    def _on_exit(self) -> None:
        status = self._process.wait()
        for number in range(len(self._pipes)):
            self._read(number)
        if status and not self.failure:
            self.failure = exit_text(status)
        self._on_end(self)
