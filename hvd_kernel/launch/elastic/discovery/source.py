"""Source of an elastic job's hosts: tells the driver which there are, now and whenever that may have changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hvd_kernel.launch.elastic.events import Event, HostsFound

LIMIT_S = 60.0
"""An answer may take so long; Horovod's driver waits for ever."""

Feed = Callable[[Event], None]


class HostSource(Protocol):
    """Who tells."""

    def start(self) -> None:
        """Begin to."""

    def close(self) -> None:
        """Tell no more. Idempotent."""


class StaticHosts:
    """Hosts that stay."""

    def __init__(self, event: HostsFound, feed: Feed) -> None:
        self._event, self._feed = event, feed

    def start(self) -> None:
        """Tell once."""
        self._feed(self._event)

    def close(self) -> None:
        """Have nothing to close."""
