"""Host updates: whoever knows that hosts come or go tells the manager, and the manager tells every state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hvd_kernel.core import session

if TYPE_CHECKING:
    from hvd_kernel.protocol.elastic import HostsUpdated


class HostUpdateResult:
    """What happened to the hosts; Horovod's numbers, which are or-ed together.

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
    """What is told: a State."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note of an update."""


@runtime_checkable
class Forgetful(Protocol):
    """A listener that can forget."""

    def forget_host_updates(self) -> None:
        """Forget what was told: the ranks have new places, in which it is considered."""


class WorkerNotificationManager:
    """The states that ``elastic.run`` is busy with in this process, which are told when hosts change.

    Examples
    --------
    >>> from hvd_kernel.elastic import HostUpdateResult, ObjectState, WorkerNotificationManager
    >>> manager, state = WorkerNotificationManager(), ObjectState(epoch=0)
    >>> manager.register_listener(state)
    >>> manager.handle_hosts_updated(1.0, HostUpdateResult.added)
    >>> state.commit()  # on all ranks, when any of them has heard of it
    Traceback (most recent call last):
    hvd_kernel.errors.HostsUpdatedInterrupt: the hosts of the job have changed
    """

    def __init__(self) -> None:
        self._listeners: list[UpdateListener] = []
        self._hears_driver = False
        self._latest = 0.0

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Hear the driver of this job, where there is one. ``elastic.run`` does this; Horovod's programs do too.

        The arguments, with which Horovod's manager finds its driver, are not needed.
        """
        del rendezvous_addr, rendezvous_port, nic, hostname, local_rank
        if self._hears_driver or not session.has_driver():
            return
        from hvd_kernel.core.driver.channel import driver  # noqa: PLC0415 - only such a job needs it

        self._hears_driver = True
        driver().on_hosts_updated(self._handle)
        driver().on_placed(self.forget_host_updates)

    def forget_host_updates(self) -> None:
        """Have every state forget what it was told: the ranks have their new places."""
        for listener in list(self._listeners):
            if isinstance(listener, Forgetful):
                listener.forget_host_updates()

    def _handle(self, update: HostsUpdated) -> None:
        self.handle_hosts_updated(update.time, update.change)

    @property
    def listeners(self) -> tuple[UpdateListener, ...]:
        """Who is told."""
        return tuple(self._listeners)

    def register_listener(self, listener: UpdateListener) -> None:
        """Tell this one from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: UpdateListener) -> None:
        """Tell this one no more."""
        self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell every state: hosts have changed at that time."""
        self._latest = max(self._latest, timestamp)
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)

    def handle_own_notice(self) -> None:
        """Tell every state: this process has to end soon. After all that was told; no clock is asked, hosts differ."""
        self.handle_hosts_updated(math.nextafter(self._latest, math.inf), HostUpdateResult.removed)


notification_manager = WorkerNotificationManager()
