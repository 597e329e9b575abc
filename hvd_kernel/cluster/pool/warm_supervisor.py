"""Supervisor of warm ranks: ``python -P -m hvd_kernel.cluster.pool.warm_supervisor``, started by warm_ranks.py.

It starts its ranks without a kernel that waits for them, and then waits itself, on a socket of its private folder, for
one that takes them; after so many minutes it ends. Taken, it is the supervisor of that kernel's cluster and no other's.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvd_kernel.cluster import registration
from hvd_kernel.cluster.supervisor import Supervisor, host
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.lifetime import children, claim
from hvd_kernel.processes.spares import warm

_GRACE_S = 1.5  # what ranks get to end by themselves
_MINUTE_S = 60.0


class WarmSupervisor(Supervisor):
    """Waits until a kernel takes the ranks."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        folders = [*map(Path, plan["folders"])]
        self._alone = _only_one(plan["likeness"], folders)
        claim(*folders)  # from here on they are this process's, and no kernel's
        os.chdir(folders[0])  # a notebook's may be removed meanwhile
        super().__init__(plan, kernel)
        self.handlers[m.MoveIn] = self._move_in
        self._listening: socket.socket | None = attachment.listen(self.folders[0])
        self._note = warm.WarmNote(plan["likeness"], plan["ranks"], time.time(), plan["minutes"], ready=False)
        warm.write(self.folders[0], self._note)
        self.loop.add_reader(self._listening.fileno(), self._take)
        self._patience = self.loop.call_later(plan["minutes"] * _MINUTE_S, lambda: self.stop(_GRACE_S))
        registration.on_all(lambda: self.loop.call_soon_threadsafe(self._ready))

    def lose_controller(self) -> None:
        """Wait on without the kernel that has started this; end with the one that has taken the ranks."""
        if self._listening is None:
            super().lose_controller()
        else:
            self.release_controller()

    def _ready(self) -> None:
        if self._listening is not None:
            self._note = replace(self._note, ready=True)
            warm.write(self.folders[0], self._note)

    def _take(self) -> None:
        """Give the ranks to the kernel that has connected, if all of them are there; nobody else gets them.

        One that takes them before they are ready wants their end.
        """
        assert self._listening is not None
        kernel = attachment.accept(self._listening)
        if kernel is None:
            return
        self._patience.cancel()
        self.loop.remove_reader(self._listening.fileno())
        self._listening.close()
        self._listening = None
        self._alone.close()
        warm.remove(self.folders[0])
        self.release_controller()
        self.take_controller(kernel)
        if len(children(self._mpiexec.pid)) == self._note.n:
            self.send(m.Attached({}, {}, [*map(str, self.folders)], 0))
        else:  # one has died while it waited
            self.loop.stop()

    def _move_in(self, told: m.MoveIn) -> None:
        """Be where the notebook is: spare processes inherit that."""
        warm.move_in(told.folder, told.variables)
        self.send(m.Connected(self._client))


def _only_one(likeness: str, folders: Sequence[Path]) -> socket.socket:
    """Hold the name of which there is one on this machine, or end: such ranks wait already, or get ready."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0hvd-warm-{os.geteuid()}-{likeness}")
    except OSError:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        sys.exit(0)
    return held


if __name__ == "__main__":
    host(WarmSupervisor)
