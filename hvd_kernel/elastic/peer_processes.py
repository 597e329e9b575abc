"""The processes of the other ranks, so that nobody waits for one that has ended while the ranks rendezvous.

Terms.
  peer       another rank whose process this one can see: of the same machine, in the same namespace of pids
  pidfd      the kernel's handle of a process; it becomes readable when the process ends, and is never another's
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

from hvd_kernel.core import ops, session
from hvd_kernel.core.process_sets import reset_communicator
from hvd_kernel.errors import RankDied

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


class PeerProcesses:
    """The peers of this rank, as long as ``elastic.run`` is busy."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}  # of each one's rank

    def look(self, *, wants_sync: bool = False) -> bool:
        """Find them. Collective; returns whether any rank wants all to take one rank's values."""
        if not session.is_initialized() or session.size() == 1:
            self.close()
            return wants_sync
        here = _place()
        found = ops.allgather_object((here, os.getpid(), wants_sync), name="elastic.peers")
        self.close()
        for rank, (place, pid, _) in enumerate(found):
            if rank != session.rank() and here and place == here:
                with suppress(OSError):  # a sandbox forbids it, or it has ended: then the engine says so
                    self._pidfds[rank] = os.pidfd_open(pid)
        return any(wants for _, _, wants in found)

    def reset_communicator(self) -> None:
        """Leave the other ranks and join them again, for which they have HVD_ELASTIC_TIMEOUT seconds.

        Under a driver those that it has are joined: others, it may be, and by other numbers.

        Raises
        ------
        RankDied
            A peer has ended, before or while the others wait, and there is no driver that could replace it.
        HvdTimeout
            Not all ranks have come.
        SystemExit
            The driver wants this rank no more.
        """
        if not session.has_driver():
            self._check()  # MPI or torchrun's store would wait
        reset_communicator(session.KnownPeers(float(session.setting("HVD_ELASTIC_TIMEOUT")), dict(self._pidfds)))
        self.close()  # they are known by their ranks of before

    def close(self) -> None:
        """Give the handles back."""
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])

    def _check(self) -> None:
        ended, _, _ = select.select(self._pidfds.values(), [], [], 0)
        for rank, pidfd in self._pidfds.items():
            if pidfd in ended:
                raise RankDied(f"rank {rank} exited before the ranks could rendezvous again", rank)


def _place() -> str:
    """Name the machine and the namespace of this process's pid; "" where that cannot be told."""
    try:
        return f"{_BOOT.read_text().strip()} {_PIDS.stat().st_ino}"
    except OSError:
        return ""
