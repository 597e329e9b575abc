"""Channel between a script's rank and the agent that started it: state reports, and messages of an elastic job.

``init`` connects to the agent's socket, once per process. A thread sleeps there until the agent requests the rank's
state. If C code keeps the GIL and the thread cannot run, the agent sends a signal and reads the stacks that its handler
writes. The agent also relays messages between this rank and the driver of its job (core/elastic_worker.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_kernel.core import call_stack
from hvd_kernel.core.call_stack import MAX_PENDING, pending, waiting_for
from hvd_kernel.processes import rank_channel
from hvd_kernel.protocol.messages import Whereabouts

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

CurrentEngine = Callable[[], "Engine | None"]
OnMessage = Callable[[bytes], None]

_connected_in = 0  # the process that has connected: a forked child has not
_channel: socket.socket | None = None


def connect(engine: CurrentEngine, on_message: OnMessage = lambda _: None) -> None:
    """Connect to the agent; do nothing if no agent started this process, or if it cannot be reached.

    ``on_message`` is called, in a thread, with each relayed message, and with b"" when the agent has ended.
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
    call_stack.dump_stacks_at_signal(writer)
    with contextlib.suppress(OSError):  # it has just ended, and ends this process
        rank_channel.register(channel, address, reader)
    os.close(reader)
    _channel = channel
    threading.Thread(target=_answer, args=(channel, engine, on_message), name="hvd-whereabouts", daemon=True).start()


def is_connected() -> bool:
    """Return whether this process is connected to its agent."""
    return _channel is not None and _connected_in == os.getpid()


def send(message: bytes) -> None:
    """Send a message that the agent relays; do nothing without an agent, as in a forked child. Any thread."""
    send_to_agent(rank_channel.RELAYED + message)


def send_to_agent(message: bytes) -> None:
    """Send a message to the agent itself. As ``send``."""
    if _channel is not None and is_connected():
        with contextlib.suppress(OSError):  # the agent has ended, and ends this process
            _channel.send(message)


def _answer(channel: socket.socket, engine: CurrentEngine, on_message: OnMessage) -> None:
    with channel, contextlib.suppress(OSError):  # the agent has ended, and ends this process
        while message := channel.recv(rank_channel.MESSAGE_BYTES):
            if message.startswith(rank_channel.RELAYED):
                on_message(message.removeprefix(rank_channel.RELAYED))
            else:
                channel.send(rank_channel.encode(whereabouts(engine())))
    on_message(b"")


def whereabouts(engine: Engine | None) -> Whereabouts:
    """Return the state of the main thread. The agent adds the rank's number."""
    waits_for = waiting_for(engine)
    state = "collective" if waits_for else "compute"
    return Whereabouts(-1, state, waits_for, call_stack.of_main_thread(), tuple(pending(engine)[:MAX_PENDING]))
