"""How a rank hears that hosts come or go: whoever knows tells the manager, and the manager tells every state."""

from __future__ import annotations

from typing import Protocol


class HostUpdateResult:
    """What happened to the hosts; Horovod's numbers, which are or-ed together."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """What is told: a State."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note of an update."""


class WorkerNotificationManager:
    """The states that ``elastic.run`` is busy with in this process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Do nothing: no driver tells of hosts here; Horovod's programs call it."""
        del rendezvous_addr, rendezvous_port, nic, hostname, local_rank

    def register_listener(self, listener: Listener) -> None:
        """Tell this one from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Tell this one no more."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all: hosts have changed at that time."""
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
