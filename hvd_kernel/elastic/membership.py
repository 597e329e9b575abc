"""Membership of a rank in its job, as ``elastic.run`` sees it: fixed ranks, or those that a driver assigns.

driver            rank in elastic.run
<---  Registered, when it enters; Finished, when it returns
HostsUpdated ---> the states are notified, and the next commit raises an interrupt
<---  Ready: why it left its generation, and the number of commits of its state
Place        ---> the rank whose values all load, and the ranks that are new
<---  Leaving, when a signal requests that this process end soon (SIGTERM, SIGUSR1)
"""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import session
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import OutOfMemory, RankDied
from hvd_kernel.protocol import notebook

if TYPE_CHECKING:
    from hvd_kernel.elastic.peer_processes import PeerProcesses
    from hvd_kernel.protocol.elastic import FromWorker, Place

ENDED = "elastic.run ended"
"""Part of the abort reason of a rank that has left ``elastic.run`` by an exception."""

_NOTICES = (signal.SIGTERM, signal.SIGUSR1)


class RankMembership(ABC):
    """The ranks of the job, and the way in which they change."""

    root: int | None = None
    """The rank whose values all load; None: the ranks compare their values and choose the newest."""

    fresh: tuple[int, ...] = ()
    """The ranks that are new in the job."""

    @abstractmethod
    def can_recover_from(self, error: Exception) -> bool:
        """Return whether a reset of the communicator can succeed after this error."""

    def leave(self, reason: str | None, step: int) -> None:  # noqa: B027 - only a driver needs it
        """Record why this rank leaves its generation (None: as planned), and the number of its state's commits."""

    def reset_communicator(self, peers: PeerProcesses) -> None:
        """Leave the other ranks and join the ranks that exist then; raises as ``PeerProcesses.reset_communicator``."""
        peers.reset_communicator()

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:  # noqa: ARG002 - only a driver needs it
        """Register as being inside ``elastic.run``; ``resumes``: with a state that can be loaded from files."""
        yield


class SameRanks(RankMembership):
    """Membership in a job whose ranks cannot be replaced."""

    def can_recover_from(self, error: Exception) -> bool:
        """Return whether all ranks are alive and will reset: not after a death, or lack of memory."""
        return not isinstance(error, RankDied | OutOfMemory) and ENDED not in str(error)


class DrivenRanks(RankMembership):
    """Membership in a job whose driver replaces ranks that have ended."""

    def can_recover_from(self, error: Exception) -> bool:
        """Return True except for lack of memory, which the driver cannot remedy."""
        return not isinstance(error, OutOfMemory)

    def leave(self, reason: str | None, step: int) -> None:
        """Report it to the driver with the next place request."""
        from hvd_kernel.core.elastic_worker import worker  # noqa: PLC0415 - only such a job needs it

        worker().leave(reason, step)

    @property
    def root(self) -> int | None:  # type: ignore[override]
        """The driver's choice: of the ranks with the newest values the oldest."""
        return self._place.root

    @property
    def fresh(self) -> tuple[int, ...]:  # type: ignore[override]
        """The ranks that the driver has marked as new."""
        return self._place.fresh

    @property
    def _place(self) -> Place:
        from hvd_kernel.core.elastic_worker import worker  # noqa: PLC0415 - only such a job needs it

        place = worker().place
        assert place is not None
        return place

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:
        """Handle changes of hosts, and signals that this process has to end soon."""
        from hvd_kernel.core.elastic_worker import report_imports  # noqa: PLC0415 - only such a job needs it
        from hvd_kernel.protocol.elastic import Finished, Registered  # noqa: PLC0415 - only such a job needs it

        notification_manager.init()
        with _leaving_on_signal():
            _send(Registered(resumes))
            report_imports()
            yield
            _send(Finished())


def membership() -> RankMembership:
    """Return the membership of this rank."""
    of_cell: RankMembership | None = notebook.membership()
    return of_cell or (DrivenRanks() if session.has_driver() else SameRanks())


@contextmanager
def _leaving_on_signal() -> Iterator[None]:
    """Leave at the next commit after the first signal; restore the previous handler for the second one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def leave_soon(*_: object) -> None:
        from hvd_kernel.protocol.elastic import Leaving  # noqa: PLC0415 - only such a job needs it

        restore()
        _send(Leaving())
        notification_manager.handle_own_notice()

    for number in _NOTICES:
        before[number] = signal.signal(number, leave_soon)
    try:
        yield
    finally:
        restore()


def _send(message: FromWorker) -> None:
    from hvd_kernel.core.elastic_worker import driver  # noqa: PLC0415 - only such a job needs it

    driver().send(message)
