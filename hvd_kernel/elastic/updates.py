"""Host updates: the manager receives changes of hosts and notifies every state of this process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hvd_kernel.core import session

if TYPE_CHECKING:
    from hvd_kernel.protocol.elastic import HostsUpdated


class HostUpdateResult:
    """Kind of change of the hosts; Horovod's numbers, which are or-ed together.

    Examples
    --------
    >>> result = hvd.elastic.HostUpdateResult
    >>> result.no_update, result.removed, result.added, result.mixed
    (0, 1, 2, 3)
    """

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class UpdateListener(Protocol):
    """Receiver of host updates: a State."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Record an update."""


@runtime_checkable
class Forgetful(Protocol):
    """Listener that can discard host updates."""

    def forget_host_updates(self) -> None:
        """Discard the recorded updates: the new places of the ranks include them."""


class WorkerNotificationManager:
    """Registry of the states that ``elastic.run`` uses in this process, which it notifies when hosts change.

    Examples
    --------
    >>> from hvd_kernel.elastic import HostUpdateResult, ObjectState, WorkerNotificationManager
    >>> manager, state = WorkerNotificationManager(), ObjectState(epoch=0)
    >>> manager.register_listener(state)
    >>> manager.handle_hosts_updated(1.0, HostUpdateResult.added)
    >>> state.commit()  # on all ranks, when any of them has been notified
    Traceback (most recent call last):
    hvd_kernel.errors.HostsUpdatedInterrupt: the hosts of the job have changed
    """

    def __init__(self) -> None:
        self._listeners: list[UpdateListener] = []
        self._is_subscribed = False
        self._latest = 0.0

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Subscribe to the driver of this job, if it has one. ``elastic.run`` calls this, and so do Horovod's programs.

        The arguments, with which Horovod's manager connects to its driver, are ignored.
        """
        del rendezvous_addr, rendezvous_port, nic, hostname, local_rank
        if self._is_subscribed or not session.has_driver():
            return
        from hvd_kernel.core.elastic_worker import driver  # noqa: PLC0415 - only such a job needs it

        self._is_subscribed = True
        driver().on_hosts_updated(self._handle)
        driver().on_placed(self.forget_host_updates)

    def forget_host_updates(self) -> None:
        """Make every state discard its updates: the new places of the ranks include them."""
        for listener in list(self._listeners):
            if isinstance(listener, Forgetful):
                listener.forget_host_updates()

    def _handle(self, update: HostsUpdated) -> None:
        self.handle_hosts_updated(update.time, update.change)

    @property
    def listeners(self) -> tuple[UpdateListener, ...]:
        """The registered states."""
        return tuple(self._listeners)

    def register_listener(self, listener: UpdateListener) -> None:
        """Notify a state from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: UpdateListener) -> None:
        """Stop notifying a state."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify every state that hosts changed at that time."""
        self._latest = max(self._latest, timestamp)
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)

    def handle_own_notice(self) -> None:
        """Notify every state that this process has to end soon.

        The timestamp is just after the latest update: clocks of hosts differ.
        """
        self.handle_hosts_updated(math.nextafter(self._latest, math.inf), HostUpdateResult.removed)


notification_manager = WorkerNotificationManager()
