"""Standby of a spare process: it imports at low priority, reports that it is ready, and waits for its task.

The parent's side is processes/spare.py.
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
    """Connection of a spare to its parent, until it gets its task. Its stdin is the parent's socket."""

    def __init__(self) -> None:
        parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
        self._parent = ControlChannel(parent, parent, is_agent=True)
        self._received: list[Message] = []

    def next_message(self, kind: type[M]) -> M | None:
        """Wait for the next message, of this type; return None if the parent has closed the connection.

        Raises
        ------
        TypeError
            The message has another type.
        """
        while not self._received:
            self._received += self._parent.receive()
        message = self._received.pop(0)
        if isinstance(message, ChannelClosed):
            return None
        if not isinstance(message, kind):
            raise TypeError(f"a spare waits for {kind.__name__}, not {type(message).__name__}")
        return message

    def report_ready(self) -> None:
        """Report that all imports are complete."""
        self._parent.send(Preloaded())

    def close(self) -> None:
        """Close the socket; stdin is empty afterwards."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, sys.stdin.fileno())
        os.close(null)
        self._parent.close()


@contextmanager
def without_collection() -> Iterator[None]:
    """Import without the garbage collector, which takes a sixth of the time to scan objects that are never freed.

    They are frozen, so that later collections, during a cell or a step, do not scan them either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def at_low_priority(work: Callable[[], None], lower_priority: Callable[[], None]) -> None:
    """Import on a thread with low priority: a process that has lowered its own priority may not raise it again.

    Parameters
    ----------
    work
        The imports.
    lower_priority
        Lowers the priority of the calling thread.
    """
    importlib.import_module("numpy")  # first: the threads of its pools inherit the importing thread's priority

    def run() -> None:
        lower_priority()
        work()

    thread = threading.Thread(target=run, name="hvd-import")
    thread.start()
    thread.join()
