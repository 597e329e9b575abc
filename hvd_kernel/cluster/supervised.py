"""A supervisor and its cluster as the kernel holds them: started by this kernel, or kept by an earlier one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.channel.messages import Inviting, Message, Stop
from hvd_kernel.processes.lifetime import children, is_stopped

LOG = "cluster.log"
_GRACE_S = 1.5  # what ranks get to end by themselves
_STOP_S = 4.0  # for a supervisor that may be stopped
_BUSY_S = 30.0  # more for one that runs: nobody else finds what cells have detached


class Supervised:
    """The control channel to the supervisor, its process, and the private folders."""

    def __init__(self, channel: ControlChannel, pid: int, folder: Path, shared: Path) -> None:
        self.pid = pid
        self.folder = folder
        self.log = folder / LOG
        self._shared = shared
        self._channel = channel
        self._gone: int | None = os.pidfd_open(pid)

    @property
    def descriptor(self) -> int:
        """The descriptor to wait on for ``receive``."""
        return self._channel.fileno()

    def receive(self) -> list[Message]:
        """Return what the supervisor has sent since the last call; ChannelClosed when it is gone. May block."""
        return self._channel.receive()

    def send(self, message: Message) -> None:
        """Tell the supervisor, which may be gone, one thing. Any thread."""
        self._channel.send(message)

    def local_ranks(self) -> set[int]:
        """Return the process ids of the ranks on this host: those that mpiexec started here."""
        return {rank for mpiexec in children(self.pid) for rank in children(mpiexec)}

    def invite(self, invitation: Inviting) -> None:
        """Have who starts the ranks elsewhere begin: nobody here."""

    def up(self, ask: Callable[..., Any]) -> None:
        """Take note that every rank is there; ``ask`` asks them (``Session.ask``)."""

    def explain(self, why: str) -> str:
        """Add to the reason why ranks have not come what else is known."""
        return why

    def stop(self) -> None:
        """End everything and leave nothing. Idempotent."""
        if self._gone is None:
            return
        self.send(Stop(_GRACE_S))
        if not self._ends(self._gone):
            signal.pidfd_send_signal(self._gone, signal.SIGKILL)
            is_ready(self._gone, None)
        self.leave()
        for folder in (self.folder, self._shared):  # there still only if the supervisor was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _ends(self, gone: int) -> bool:
        """Wait for its end; no longer than a moment where it is stopped."""
        return is_ready(gone, _STOP_S) or (not is_stopped(self.pid) and is_ready(gone, _BUSY_S))

    def leave(self) -> None:
        """Hang up: a detached cluster goes on, another one ends. Idempotent."""
        self._channel.close()
        if self._gone is not None:
            os.close(self._gone)
            self._gone = None
