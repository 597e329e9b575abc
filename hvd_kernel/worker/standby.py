"""Standby of a spare process: it imports in time that others leave it, says that it is ready, and waits for its task.

What its parent has of it: processes/spares/spare.py.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Message, Preloaded

M = TypeVar("M", bound=Message)


class Standby:
    """The process itself, until it is told who to be. Its stdin is the socket of whoever started it."""

    def __init__(self) -> None:
        parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
        self._parent = ControlChannel(parent, parent, is_agent=True)
        self._told: list[Message] = []

    def told(self, kind: type[M]) -> M | None:
        """Wait for the next message, which is of this type; None: none will come, this process is not wanted any more.

        Raises
        ------
        TypeError
            It is another one.
        """
        while not self._told:
            self._told += self._parent.receive()
        message = self._told.pop(0)
        if isinstance(message, ChannelClosed):
            return None
        if not isinstance(message, kind):
            raise TypeError(f"a spare waits for {kind.__name__}, not {type(message).__name__}")
        return message

    def say_ready(self) -> None:
        """Say that all imports are done."""
        self._parent.send(Preloaded())

    def leave(self) -> None:
        """Give the socket up: stdin is empty from here on."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, sys.stdin.fileno())
        os.close(null)
        self._parent.close()


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector: a sixth of the time goes into looking at what stays for ever anyway.

    Frozen, none of it is looked at later, in the middle of a cell or a step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def in_spare_time(work: Callable[[], None], give_way: Callable[[], None]) -> None:
    """Import on a thread that lets others go first: a process that has lowered its own priority may not raise it again.

    Parameters
    ----------
    work
        The imports.
    give_way
        Lowers the priority of the thread that calls it.
    """
    importlib.import_module("numpy")  # first: the threads of its pools inherit the priority of who imports it

    def run() -> None:
        give_way()
        work()

    thread = threading.Thread(target=run, name="hvd-import")
    thread.start()
    thread.join()
