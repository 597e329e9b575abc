"""Membership of a rank in its job, as ``elastic.run`` sees it: the same ranks for ever, or those that a driver has.

driver            rank in elastic.run
<---  Registered, when it enters; Finished, when it returns
HostsUpdated ---> the states are told, and the next commit interrupts
<---  Ready: why it has left the others, and how many commits its state has seen
Place        ---> whose values to take, and who is new
<---  Leaving, when a signal asks this process to end soon (SIGTERM, SIGUSR1)
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
from hvd_kernel.protocol import cell_ranks

if TYPE_CHECKING:
    from hvd_kernel.elastic.peer_processes import PeerProcesses
    from hvd_kernel.protocol.elastic import FromWorker, Place

ENDED = "elastic.run ended"
"""In what a rank says that has left ``elastic.run`` by an exception."""

_NOTICES = (signal.SIGTERM, signal.SIGUSR1)


class RankMembership(ABC):
    """Who the other ranks are, and who says so."""

    root: int | None = None
    """The rank whose values all take; None: they see who has the newest."""

    fresh: tuple[int, ...] = ()
    """The ranks that are new in the job."""

    @abstractmethod
    def can_recover_from(self, error: Exception) -> bool:
        """Tell whether to meet the others again is possible, and of use."""

    def leave(self, reason: str | None, step: int) -> None:  # noqa: B027 - without a driver nobody asks
        """Take note of why this rank leaves the others (None: it is planned), and of its state's commits."""

    def reset_communicator(self, peers: PeerProcesses) -> None:
        """Leave the other ranks, and join those that there are then; raises as ``PeerProcesses.reset_communicator``."""
        peers.reset_communicator()

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:  # noqa: ARG002 - who has a driver tells it
        """Be within ``elastic.run``; ``resumes``: with a state that can begin from files."""
        yield


class SameRanks(RankMembership):
    """Nobody comes, and nobody may go."""

    def can_recover_from(self, error: Exception) -> bool:
        """All ranks must be there still, and come to meet again."""
        return not isinstance(error, RankDied | OutOfMemory) and ENDED not in str(error)


class DrivenRanks(RankMembership):
    """Ranks of a job whose driver replaces those that have ended."""

    def can_recover_from(self, error: Exception) -> bool:
        """Only more memory is nothing that the driver has."""
        return not isinstance(error, OutOfMemory)

    def leave(self, reason: str | None, step: int) -> None:
        """Have the driver told with the question for the next place."""
        from hvd_kernel.core.driver.worker import worker  # noqa: PLC0415 - only such a job needs it

        worker().leave(reason, step)

    @property
    def root(self) -> int | None:  # type: ignore[override]
        """As the driver has chosen: of those with the newest values the oldest."""
        return self._place.root

    @property
    def fresh(self) -> tuple[int, ...]:  # type: ignore[override]
        """As the driver says."""
        return self._place.fresh

    @property
    def _place(self) -> Place:
        from hvd_kernel.core.driver.worker import worker  # noqa: PLC0415 - only such a job needs it

        place = worker().place
        assert place is not None
        return place

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:
        """Act on changes of hosts, and on notices that this process has to end soon."""
        from hvd_kernel.core.driver import spare_imports  # noqa: PLC0415 - only such a job needs it
        from hvd_kernel.protocol.elastic import Finished, Registered  # noqa: PLC0415 - only such a job needs it

        notification_manager.init()
        with _notices_are_heeded():
            _tell(Registered(resumes))
            spare_imports.tell()
            yield
            _tell(Finished())


def membership() -> RankMembership:
    """Return this rank's."""
    found: RankMembership | None = cell_ranks.provided()
    return found or (DrivenRanks() if session.has_driver() else SameRanks())


@contextmanager
def _notices_are_heeded() -> Iterator[None]:
    """Have the first notice lead to a planned end: at the next commit. The second one does what it did before."""
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
        _tell(Leaving())
        notification_manager.handle_own_notice()

    for number in _NOTICES:
        before[number] = signal.signal(number, leave_soon)
    try:
        yield
    finally:
        restore()


def _tell(message: FromWorker) -> None:
    from hvd_kernel.core.driver.channel import driver  # noqa: PLC0415 - only such a job needs it

    driver().send(message)
