"""Kernel side of a supervisor and its cluster, whether this kernel has started it or an earlier one has kept it."""

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
_GRACE_S = 1.5  # for ranks to exit after SIGTERM
_STOP_S = 4.0  # for a supervisor that may be stopped (SIGSTOP)
_BUSY_S = 30.0  # additionally for one that runs: only it can find processes that cells have detached


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
        """Return the supervisor's messages since the last call; ChannelClosed when it is gone. May block."""
        return self._channel.receive()

    def send(self, message: Message) -> None:
        """Send a message to the supervisor, which may be gone. Any thread."""
        self._channel.send(message)

    def local_ranks(self) -> set[int]:
        """Return the process ids of the ranks on this host: those that mpiexec started here."""
        return {rank for mpiexec in children(self.pid) for rank in children(mpiexec)}

    def invite(self, invitation: Inviting) -> None:
        """Tell the engine to start its processes (no-op with mpiexec)."""

    def on_ready(self, ask: Callable[..., Any]) -> None:
        """Handle that all ranks have started; ``ask`` queries them (``Session.ask``)."""

    def explain(self, reason: str) -> str:
        """Return the reason why ranks did not start, with additional facts."""
        return reason

    def stop(self) -> None:
        """Stop all processes and remove all files. Idempotent."""
        if self._gone is None:
            return
        self.send(Stop(_GRACE_S))
        if not self._ends(self._gone):
            signal.pidfd_send_signal(self._gone, signal.SIGKILL)
            is_ready(self._gone, None)
        self.leave()
        for folder in (self.folder, self._shared):  # still exist only if the supervisor was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _ends(self, gone: int) -> bool:
        """Wait for the supervisor to exit, only briefly if it is stopped (SIGSTOP); return whether it has."""
        return is_ready(gone, _STOP_S) or (not is_stopped(self.pid) and is_ready(gone, _BUSY_S))

    def leave(self) -> None:
        """Close the channel: a detached cluster continues, any other stops. Idempotent."""
        self._channel.close()
        if self._gone is not None:
            os.close(self._gone)
            self._gone = None
