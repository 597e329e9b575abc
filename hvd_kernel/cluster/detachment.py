"""Detachment of a cluster from its kernel: the socket for the next kernel, the note beside it, the time it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from hvd_kernel.processes import detached
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel.messages import Detach
from hvd_kernel.processes.event_loop import EventLoop, Timer
from hvd_kernel.processes.lifetime import claim

_HOUR_S = 3600.0


class Detachment:
    """Of a supervisor, in whose thread all of it happens. ``on_expired``: no kernel has come for too long."""

    def __init__(
        self, folders: list[Path], wish: Detach, kernel: int, loop: EventLoop, on_expired: Callable[[], None]
    ) -> None:
        self._folder, self._loop, self._on_expired = folders[0], loop, on_expired
        self._note = detached.DetachedNote(**msgspec.structs.asdict(wish), kernel=kernel, since=time.time())
        self._clock: Timer | None = None  # while no kernel has the cluster
        claim(*folders)  # from here on they are the supervisor's, and no kernel's
        self.listening = attachment.listen(self._folder)
        detached.write(self._folder, self._note)

    @property
    def name(self) -> str:
        """The cluster's."""
        return self._note.name

    def attached(self, kernel: int) -> None:
        """Take note that a kernel has the cluster."""
        if self._clock is not None:
            self._clock.cancel()
        self._write(kernel)

    def released(self) -> None:
        """Take note that none has it."""
        self._clock = self._loop.call_later(self._note.hours * _HOUR_S, self._on_expired)
        self._write(0)

    def resize(self, n: int) -> None:
        """Take note that there are n ranks."""
        self._note = replace(self._note, n=n)
        self._write(self._note.kernel)

    def _write(self, kernel: int) -> None:
        self._note = replace(self._note, kernel=kernel, since=time.time())
        try:
            detached.write(self._folder, self._note)
        except OSError:  # a full disk: the note is old, the cluster is as good as before
            return
