"""Sources of an elastic job's hosts: a list that stays, or an object that is polled in a thread of its own.

A discovery object is Horovod's: anything with ``find_available_hosts_and_slots() -> {name: slots}``. What it returns,
and what a discovery script prints (script.py), is parsed here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.placement import Host, parse
from hvd_kernel.processes.event_loop import EventLoop, Timer

LIMIT_S = 60.0
"""Longest time for an answer; Horovod's driver waits for ever."""
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
