"""Discovery script of an elastic job: a program that a shell runs again and again, without anybody waiting for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.answers import read
from hvd_kernel.launch.elastic.discovery.source import LIMIT_S, Feed
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.outcome import told
from hvd_kernel.processes.event_loop import EventLoop, Timer

_SAID = 2000  # characters of its stderr that are shown
_CHUNK = 1 << 16


class DiscoveryScript:
    """A user's program, which a shell runs: one run after another, ``interval_s`` from an end to the next begin."""

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
        """Run it, and again after that."""
        self._next = None
        self._run = _Run(self._command, self._loop, self._ended, self._limit_s)

    def close(self) -> None:
        """Run it no more."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
        if self._run is not None:
            self._run.close()
            self._run = None

    def _ended(self, run: _Run) -> None:
        self._run = None
        run.close()
        self._feed(self._event(run))
        if not self._is_closed:
            self._next = self._loop.call_later(self._interval_s, self.start)

    def _event(self, run: _Run) -> Event:
        said = run.text[1].strip()[-_SAID:]
        if run.why:
            return DiscoveryFailed(f"{self._command}: {run.why}" + (f"; it said: {said}" if said else ""))
        try:
            return HostsFound(read(run.text[0], self._slots), said)
        except ConfigError as error:
            return DiscoveryFailed(f"{self._command}: {str(error).removesuffix('.')}")


class _Run:
    """One run of the script. ``why``: in what way it has failed; ``text``: what it has written, twice."""

    def __init__(self, command: str, loop: EventLoop, on_end: Callable[[_Run], None], limit_s: float) -> None:
        self.why = ""
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
            loop.add_reader(pipe.fileno(), partial(self._read, number))
        loop.add_reader(self._pidfd, self._ended)
        self._limit = loop.call_later(limit_s, self._too_long)

    @property
    def text(self) -> list[str]:
        """Its stdout and its stderr."""
        return [data.decode(errors="replace") for data in self._data]

    def close(self) -> None:
        """End it, if it has not ended, with all that it has started. Idempotent."""
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

    def _read(self, number: int) -> None:
        descriptor = self._pipes[number].fileno()
        with suppress(BlockingIOError):
            while data := os.read(descriptor, _CHUNK):
                self._data[number] += data
            self._loop.remove_reader(descriptor)

    def _too_long(self) -> None:
        self.why = f"it has not ended within {self._limit_s:g} s"
        self._on_end(self)

    def _ended(self) -> None:
        status = self._process.wait()
        for number in range(len(self._pipes)):
            self._read(number)
        if status:
            self.why = told(status)
        self._on_end(self)
