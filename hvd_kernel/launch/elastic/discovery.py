"""Sources of an elastic job's hosts: a list that stays, a script, or an object that is polled in a thread of its own.

A discovery object is Horovod's: anything with ``find_available_hosts_and_slots() -> {name: slots}``. What it returns,
and what a discovery script prints, is parsed here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Any, Protocol

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.outcome import exit_text
from hvd_kernel.launch.placement import Host, parse
from hvd_kernel.processes.event_loop import EventLoop, Timer

LIMIT_S = 60.0
"""Longest time for an answer; Horovod's driver waits forever."""
_NO_SLOTS = ":0"

Feed = Callable[[Event], None]


class HostSource(Protocol):
    """Notifies the driver of the hosts that exist, at the start and whenever they may have changed."""

    def start(self) -> None:
        """Start notifying."""

    def close(self) -> None:
        """Stop notifying. Idempotent."""


class StaticHosts:
    """Hosts that stay."""

    def __init__(self, event: HostsFound, feed: Feed) -> None:
        self._event, self._feed = event, feed

    def start(self) -> None:
        """Notify once."""
        self._feed(self._event)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class HostDiscovery(Protocol):
    """An object that knows the hosts."""

    def find_available_hosts_and_slots(self) -> Any:
        """Return the slots of each available host, in the order in which new hosts are to be used."""


class PolledHosts:
    """Calls a discovery object repeatedly, ``interval_s`` after each answer, without blocking the loop.

    A call that takes longer than ``limit_s`` counts as failed; the next call is made when it has returned, because a
    thread cannot be stopped from outside.
    """

    def __init__(
        self, discovery: HostDiscovery, interval_s: float, loop: EventLoop, feed: Feed, *, limit_s: float = LIMIT_S
    ) -> None:
        self._discovery, self._interval_s, self._limit_s = discovery, interval_s, limit_s
        self._loop, self._feed = loop, feed
        self._timer: Timer | None = None
        self._is_closed = False
        self._closing = threading.Lock()  # after close() the thread must not touch the loop, which may be closed

    def start(self) -> None:
        """Start a call; its end schedules the next one."""
        self._timer = self._loop.call_later(self._limit_s, self._timed_out)
        threading.Thread(target=self._query, name="hvd host discovery", daemon=True).start()

    def close(self) -> None:
        """Start no further call and drop the answer of the present one."""
        with self._closing:
            self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _query(self) -> None:
        event: Event
        try:
            event = HostsFound(parse_mapping(self._discovery.find_available_hosts_and_slots()))
        except ConfigError as error:
            event = DiscoveryFailed(str(error).removesuffix("."))
        except Exception as error:  # noqa: BLE001 - the user's code
            event = DiscoveryFailed(f"{type(error).__name__}: {error}")
        with self._closing:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(partial(self._on_answer, event))

    def _on_answer(self, event: Event) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._feed(event)
        if not self._is_closed:  # feed() may have ended the job
            self._timer = self._loop.call_later(self._interval_s, self.start)

    def _timed_out(self) -> None:
        self._feed(DiscoveryFailed(f"it has not answered within {self._limit_s:g} s"))


def parse_lines(text: str, slots: int | None) -> tuple[Host, ...]:
    r"""Return the hosts that a script prints: lines ``host``, ``host:slots`` or ``[fe80::1]:slots``, in their order.

    If a host occurs twice, its last line counts, at the position of the first; a host with 0 slots is left out.

    Parameters
    ----------
    slots
        Of a host without a number of slots; None: 1.

    Raises
    ------
    ConfigError
        Naming the line that cannot be parsed.

    Examples
    --------
    >>> [(host.name, host.slots) for host in parse_lines("b:4\n\na\n", 2)]
    [('b', 4), ('a', 2)]
    """
    slots_of: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        is_unused = line.endswith(_NO_SLOTS) and line.count(":") == 1
        try:
            [host] = parse(line.removesuffix(_NO_SLOTS) if is_unused else line, slots or 1)
        except (ConfigError, ValueError):
            raise ConfigError(
                f"line {number} is not a host with its slots: {line!r}; print host, host:4 or [fe80::1]:4."
            ) from None
        slots_of[host.name] = 0 if is_unused else host.slots
    return _hosts(slots_of)


def parse_mapping(answer: Any) -> tuple[Host, ...]:
    """Return the hosts of a mapping from names to slots, in its order.

    Raises
    ------
    ConfigError
        The answer is not such a mapping.
    """
    if not isinstance(answer, Mapping):
        raise ConfigError(f"find_available_hosts_and_slots() must return hosts with their slots, not {answer!r}.")
    for name, slots in answer.items():
        if not isinstance(name, str) or not isinstance(slots, int) or slots < 0:
            raise ConfigError(
                f"find_available_hosts_and_slots() must return slots of hosts, not {slots!r} of {name!r}."
            )
    return _hosts(answer)


def _hosts(slots_of: Mapping[str, int]) -> tuple[Host, ...]:
    return tuple(Host(name, slots) for name, slots in slots_of.items() if slots)


# A script, which a shell runs repeatedly, without blocking the launcher's loop


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
