"""Membership of a rank in its job, as ``elastic.run`` sees it: fixed ranks, or those that a driver assigns.

driver            rank in elastic.run
<---  Registered, when it enters; Finished, when it returns
HostsUpdated ---> the states are notified, and the next commit raises an interrupt
<---  Ready: why it left its generation, and the number of commits of its state
Place        ---> the rank whose values all load, and the ranks that are new
<---  Leaving, when a signal requests that this process end soon (SIGTERM, SIGUSR1)

The processes of the other ranks are watched, so that no rank waits in the rendezvous for one that has ended.

Terms.
  peer   another rank whose process is visible from here: on the same machine, in the same PID namespace
  pidfd  the kernel's handle of a process; it becomes readable when the process ends, and is never reused
"""

from __future__ import annotations

import os
import select
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import ops, session
from hvd_kernel.core.process_sets import reset_communicator
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import OutOfMemory, RankDied
from hvd_kernel.protocol import notebook

if TYPE_CHECKING:
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


# Processes of the other ranks


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


class PeerProcesses:
    """Peers of this rank while ``elastic.run`` is active."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}  # by rank

    def refresh(self, *, wants_sync: bool = False) -> bool:
        """Open handles of the current peers; return whether any rank requests a sync of all states. Collective."""
        if not session.is_initialized() or session.size() == 1:
            self.close()
            return wants_sync
        here = _place()
        gathered = ops.allgather_object((here, os.getpid(), wants_sync), name="elastic.peers")
        self.close()
        for rank, (place, pid, _) in enumerate(gathered):
            if rank != session.rank() and here and place == here:
                with suppress(OSError):  # forbidden by a sandbox, or the process has ended, which the engine reports
                    self._pidfds[rank] = os.pidfd_open(pid)
        return any(wants for _, _, wants in gathered)

    def reset_communicator(self) -> None:
        """Leave the other ranks and join them again, within HVD_ELASTIC_TIMEOUT seconds.

        With a driver the ranks join those that it has assigned, whose number and order may change.

        Raises
        ------
        RankDied
            A peer has ended, before or during the rendezvous, and there is no driver that could replace it.
        HvdTimeout
            Not all ranks have joined.
        SystemExit
            The driver has removed this rank.
        """
        if not session.has_driver():
            self._check()  # MPI or torchrun's store would wait
        reset_communicator(session.KnownPeers(float(session.setting("HVD_ELASTIC_TIMEOUT")), dict(self._pidfds)))
        self.close()  # the handles are keyed by the old ranks

    def close(self) -> None:
        """Close the handles."""
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])

    def _check(self) -> None:
        ended, _, _ = select.select(self._pidfds.values(), [], [], 0)
        for rank, pidfd in self._pidfds.items():
            if pidfd in ended:
                raise RankDied(f"rank {rank} exited before the ranks could rendezvous again", rank)


def _place() -> str:
    """Return an identifier of the machine and the PID namespace; "" if it cannot be determined."""
    try:
        return f"{_BOOT.read_text().strip()} {_PIDS.stat().st_ino}"
    except OSError:
        return ""
