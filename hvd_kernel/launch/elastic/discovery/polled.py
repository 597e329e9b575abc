"""Discovery object of an elastic job, asked again and again in a thread of its own, so that nobody waits for it.

It is Horovod's: anything with ``find_available_hosts_and_slots() -> {name: slots}``.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.answers import checked
from hvd_kernel.launch.elastic.discovery.source import LIMIT_S, Feed
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.processes.event_loop import EventLoop, Timer


class HostDiscovery(Protocol):
    """Who is asked."""

    def find_available_hosts_and_slots(self) -> Any:
        """Return the slots of each host that there is, in the order in which new ones are to be used."""


class PolledHosts:
    """Asks an object: ``interval_s`` from an answer to the next question.

    One that has not answered within ``limit_s`` counts as failed, and is asked again when it has: a thread cannot be
    ended from outside.
    """

    def __init__(
        self, asked: HostDiscovery, interval_s: float, loop: EventLoop, feed: Feed, *, limit_s: float = LIMIT_S
    ) -> None:
        self._asked, self._interval_s, self._limit_s = asked, interval_s, limit_s
        self._loop, self._feed = loop, feed
        self._timer: Timer | None = None
        self._is_closed = False
        self._closing = threading.Lock()  # the loop is gone some time after close

    def start(self) -> None:
        """Ask, and again after that."""
        self._timer = self._loop.call_later(self._limit_s, self._too_long)
        threading.Thread(target=self._ask, name="hvd host discovery", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        with self._closing:
            self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        event: Event
        try:
            event = HostsFound(checked(self._asked.find_available_hosts_and_slots()))
        except ConfigError as error:
            event = DiscoveryFailed(str(error).removesuffix("."))
        except Exception as error:  # noqa: BLE001 - the user's code
            event = DiscoveryFailed(f"{type(error).__name__}: {error}")
        with self._closing:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(partial(self._answered, event))

    def _answered(self, event: Event) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._feed(event)
        if not self._is_closed:  # the driver may have ended the job for it
            self._timer = self._loop.call_later(self._interval_s, self.start)

    def _too_long(self) -> None:
        self._feed(DiscoveryFailed(f"it has not answered within {self._limit_s:g} s"))
