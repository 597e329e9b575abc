"""Processes of the other ranks, watched so that no rank waits in the rendezvous for one that has ended.

Terms.
  peer       another rank whose process is visible from here: on the same machine, in the same PID namespace
  pidfd      the kernel's handle of a process; it becomes readable when the process ends, and is never reused
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
