"""The launcher's stdin, on its way to rank 0."""

from __future__ import annotations

import os
import select
import sys

from hvd_kernel.launch.agents import Agent
from hvd_kernel.processes.channel.messages import Input

_CHUNK = 1 << 16


class Source:
    """The launcher's stdin on its way to rank 0: no more than one piece at a time, so that rank 0 sets the pace."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._open = fd >= 0
        self._waits = False  # for rank 0 to take the last piece

    @property
    def fd(self) -> int:
        """What to wait on; below 0: nothing now."""
        return self._fd if self._open and not self._waits and self._ours() else -1

    def _ours(self) -> bool:
        """Tell whether it may be read: in the background of a terminal that would stop the launcher."""
        if not os.isatty(self._fd):
            return True
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def taken(self) -> None:
        """Rank 0 has taken what it was sent."""
        self._waits = False

    def pump(self, agent: Agent) -> None:
        """Send what is there."""
        if self.fd < 0 or not select.select([self._fd], [], [], 0)[0]:
            return
        try:
            data = os.read(self._fd, _CHUNK)
        except OSError:
            data = b""
        self._open = self._waits = bool(data)
        agent.send(Input(0, data))


def own_stdin() -> int:
    """Return the descriptor of this process's stdin; below 0: it has none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        return -1
