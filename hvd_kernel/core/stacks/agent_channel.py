"""Answers to the agent that started this script: where the rank is, and what it waits for.

``init`` connects to the agent's socket, once in a process. A thread sleeps there until the agent asks. When Python's
lock is kept by C code and the thread gets no turn, the agent sends a signal instead, and reads what it writes.

Beside it the agent carries messages between this rank and the driver of its job (core/driver/channel.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_kernel.core.stacks import call_stack, stack_signal
from hvd_kernel.core.stacks.pending import MAX_PENDING, pending, waiting_for
from hvd_kernel.processes import rank_channel
from hvd_kernel.protocol.messages import Whereabouts, to_wire

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

CurrentEngine = Callable[[], "Engine | None"]
Hear = Callable[[bytes], None]

_connected_in = 0  # the process that has connected: a forked child has not
_channel: socket.socket | None = None


def connect(engine: CurrentEngine, hear: Hear = lambda _: None) -> None:
    """Reach the agent; nothing happens where no agent has started this process, or it cannot be reached.

    ``hear`` is called, in a thread, with each message that the agent passes on, and with none at the agent's end.
    """
    global _connected_in, _channel  # noqa: PLW0603 - of the process
    address = os.environ.get(rank_channel.VARIABLE)
    if address is None or _connected_in == os.getpid():
        return
    _connected_in = os.getpid()
    try:
        channel = rank_channel.connect(address)
    except OSError:  # in a container of its own, for example
        return
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stack_signal.write_stacks_to(writer)
    with contextlib.suppress(OSError):  # it has just ended, and ends this process
        rank_channel.register(channel, address, reader)
    os.close(reader)
    _channel = channel
    threading.Thread(target=_answer, args=(channel, engine, hear), name="hvd-whereabouts", daemon=True).start()


def is_connected() -> bool:
    """Tell whether this process has reached its agent."""
    return _channel is not None and _connected_in == os.getpid()


def send(message: bytes) -> None:
    """Have the agent pass a message on; nothing happens where there is no agent, as in a forked child. Any thread."""
    tell_agent(rank_channel.RELAYED + message)


def tell_agent(message: bytes) -> None:
    """Tell the agent itself. As ``send``."""
    if _channel is not None and is_connected():
        with contextlib.suppress(OSError):  # the agent has ended, and ends this process
            _channel.send(message)


def _answer(channel: socket.socket, engine: CurrentEngine, hear: Hear) -> None:
    with channel, contextlib.suppress(OSError):  # the agent has ended, and ends this process
        while message := channel.recv(rank_channel.MESSAGE_BYTES):
            if message.startswith(rank_channel.RELAYED):
                hear(message.removeprefix(rank_channel.RELAYED))
            else:
                channel.send(rank_channel.encode(to_wire(whereabouts(engine()))))
    hear(b"")


def whereabouts(engine: Engine | None) -> Whereabouts:
    """Look at the main thread. The rank's number is the agent's to add."""
    waits_for = waiting_for(engine)
    state = "collective" if waits_for else "compute"
    return Whereabouts(-1, state, waits_for, call_stack.of_main_thread(), tuple(pending(engine)[:MAX_PENDING]))
