"""Forwarding of the launcher's signals to the ranks, and of its stdin to rank 0.

Signals are those of a batch system before its time limit, or the user's.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.processes.channel.control_channel import CHUNK
from hvd_kernel.processes.channel.messages import FORWARDED, Input
from hvd_kernel.processes.event_loop import EventLoop

_FOREGROUND_S = 0.5  # between two checks whether this process may read its terminal


def ignore_until_forwarded() -> None:
    """Ignore signals for the ranks before these are started; ``forwarded`` replaces the handlers."""
    for number in FORWARDED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ignore)


@contextmanager
def forwarded(agents: Agents) -> Iterator[None]:
    """Forward signals to the ranks of a job, except those that the program handles or ignores itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in FORWARDED}
    ours = [number for number, handler in before.items() if handler in {signal.SIG_DFL, _ignore}]

    def forward(number: int, _frame: FrameType | None) -> None:
        agents.loop.call_soon_threadsafe(partial(agents.signal, number))

    for number in ours:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; not SIG_IGN, which the ranks would inherit."""


class StdinForwarder:
    """Sends stdin to rank 0, one chunk at a time: the next one when rank 0 has read the last."""

    def __init__(self, fd: int, agent: AgentHandle, loop: EventLoop, rank: int = 0) -> None:
        self._fd, self._agent, self._loop, self._rank = fd, agent, loop, rank
        self._is_open = fd >= 0
        self.resume()

    def resume(self) -> None:
        """Send the next chunk: rank 0 has read the last one."""
        if self._is_open:
            self._loop.add_reader(self._fd, self._send)

    def close(self) -> None:
        """Stop sending. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)

    def _send(self) -> None:
        self._loop.remove_reader(self._fd)
        if not self._may_read():
            self._loop.call_later(_FOREGROUND_S, self.resume)
            return
        try:
            data = os.read(self._fd, CHUNK)
        except OSError:
            data = b""
        self._is_open = bool(data)
        self._agent.send(Input(self._rank, data))

    def _may_read(self) -> bool:
        """Return whether stdin may be read: a background process of a terminal would be stopped by reading it."""
        if not os.isatty(self._fd):
            return True
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False


def own_stdin() -> int:
    """Return the descriptor of this process's stdin, or -1 if it has none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        return -1
