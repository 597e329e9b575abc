"""What a supervisor does for a kept cluster: it lets kernels in one by one, and ends it when none comes back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import msgspec

from hvd_kernel.cluster.door import Door, Visitor
from hvd_kernel.processes import detached
from hvd_kernel.processes.channel.messages import Keep, Refused
from hvd_kernel.processes.lifetime import claim

_HOUR_S = 3600.0


class Keeper:
    """The door, the note beside it, and the clock. For the supervisor's thread that watches."""

    def __init__(self, folders: list[Path], wish: Keep, kernel: int) -> None:
        self._folder = folders[0]
        self._note = detached.Note(**msgspec.structs.asdict(wish), kernel=kernel, since=time.time())
        self._alone_since: float | None = None  # CLOCK_MONOTONIC; None while a kernel has the cluster
        claim(*folders)  # from here on they are the supervisor's, and no kernel's
        self.door = Door(self._folder)
        detached.write(self._folder, self._note)

    @property
    def name(self) -> str:
        """The cluster's."""
        return self._note.name

    def admit(self, tenant: Visitor | None) -> Visitor | None:
        """Return who is at the door; None where nobody is, or where another kernel has the cluster, and say so."""
        visitor = self.door.visitor()
        if visitor is None or tenant is None:
            return visitor
        visitor.channel.send(Refused(tenant.pid))
        visitor.close()
        return None

    def taken(self, kernel: int) -> None:
        """Take note that a kernel has it."""
        self._alone_since = None
        self._write(kernel)

    def left(self) -> None:
        """Take note that none has it."""
        self._alone_since = time.monotonic()
        self._write(0)

    def patience(self) -> float | None:
        """Return how many seconds are left until its end; None: no end is near."""
        if self._alone_since is None:
            return None
        return max(0.0, self._alone_since + self._note.hours * _HOUR_S - time.monotonic())

    def _write(self, kernel: int) -> None:
        self._note = replace(self._note, kernel=kernel, since=time.time())
        try:
            detached.write(self._folder, self._note)
        except OSError:  # a full disk: the note is old, the cluster is as good as before
            return
