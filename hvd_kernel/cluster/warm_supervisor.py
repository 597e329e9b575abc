"""Supervisor of warm ranks: ``python -P -m hvd_kernel.cluster.warm_supervisor``, started by warm_ranks.py.

It starts its ranks in advance, and then waits, on a socket of its private folder, for a kernel that adopts them; it
exits after a limited number of minutes. Once adopted, it is the supervisor of that kernel's cluster.
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
from hvd_kernel.processes import warm
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.lifetime import children, claim

_GRACE_S = 1.5  # for ranks to exit after SIGTERM
_MINUTE_S = 60.0


class WarmSupervisor(Supervisor):
    """A supervisor that waits until a kernel adopts the ranks."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        folders = [*map(Path, plan["folders"])]
        self._lock = _lock_or_exit(plan["likeness"], folders)
        claim(*folders)  # from now on this process owns them instead of a kernel
        os.chdir(folders[0])  # the notebook's folder may be removed in the meantime
        super().__init__(plan, kernel)
        self.handlers[m.MoveIn] = self._move_in
        self._listening: socket.socket | None = attachment.listen(self.folders[0])
        self._note = warm.WarmNote(plan["likeness"], plan["ranks"], time.time(), plan["minutes"], ready=False)
        warm.write(self.folders[0], self._note)
        self.loop.add_reader(self._listening.fileno(), self._accept_kernel)
        self._patience = self.loop.call_later(plan["minutes"] * _MINUTE_S, lambda: self.stop(_GRACE_S))
        registration.on_all(lambda: self.loop.call_soon_threadsafe(self._ready))

    def lose_controller(self) -> None:
        """Continue without the kernel that has started this; exit with the kernel that has adopted the ranks."""
        if self._listening is None:
            super().lose_controller()
        else:
            self.release_controller()

    def _ready(self) -> None:
        if self._listening is not None:
            self._note = replace(self._note, ready=True)
            warm.write(self.folders[0], self._note)

    def _accept_kernel(self) -> None:
        """Pass the ranks to the kernel that has connected, and stop listening; exit if a rank is missing.

        A kernel that connects before they are ready does so to stop them (``%hvd clean``).
        """
        assert self._listening is not None
        kernel = attachment.accept(self._listening)
        if kernel is None:
            return
        self._patience.cancel()
        self.loop.remove_reader(self._listening.fileno())
        self._listening.close()
        self._listening = None
        self._lock.close()
        warm.remove(self.folders[0])
        self.release_controller()
        self.adopt_controller(kernel)
        if len(children(self._mpiexec.pid)) == self._note.n:
            self.send(m.Attached({}, {}, [*map(str, self.folders)], 0))
        else:  # a rank has died while it waited
            self.loop.stop()

    def _move_in(self, message: m.MoveIn) -> None:
        """Change to the notebook's working directory and variables, which spare processes inherit."""
        warm.move_in(message.folder, message.variables)
        self.send(m.Connected(self._client))


def _lock_or_exit(likeness: str, folders: Sequence[Path]) -> socket.socket:
    """Bind a host-wide name for the likeness, or exit: ranks with this likeness wait or start already."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0hvd-warm-{os.geteuid()}-{likeness}")
    except OSError:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        sys.exit(0)
    return lock


if __name__ == "__main__":
    host(WarmSupervisor)
