"""Queries from an agent to its ranks, on demand, for where each rank is and what it waits for.

The same connection carries messages between a rank and the controller of the agent (protocol/elastic.py): the agent
forwards datagrams that begin with ``RELAYED`` unchanged. A datagram that begins with ``IMPORTED`` is for the agent,
which makes spares import the same modules.

A rank connects in ``hvd.init()`` to an abstract socket of this host, and passes a pipe. A thread of the rank answers
queries. A rank that does not answer is inspected from outside: it is stopped, or it writes its stacks to the pipe at a
signal, without Python's lock. Only processes of this user may connect.

The report on a rank is a map in MessagePack: the rank's own answer (``protocol.messages.Whereabouts``), or only
``state``:
  connected  it can be queried from now on
  absent     it cannot be queried, for example because it has not called ``hvd.init()``
  stopped    by a signal or a debugger
  silent     with ``stack``: the stacks that it has written
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from hvd_kernel.processes.event_loop import EventLoop, Timer
from hvd_kernel.processes.lifetime import is_stopped, peer_of
from hvd_kernel.protocol.messages import STACK_END, STACK_SIGNAL

VARIABLE = "HVD_AGENT_SOCKET"
"""Holds the socket of the agent and the number of the rank: ``@name/3``."""

MESSAGE_BYTES = 1 << 18
"""The longest datagram."""

RELAYED = b"\0"
"""Prefix of datagrams between a rank and the controller; queries and answers do not have it."""

IMPORTED = b"\1"
"""Prefix of datagrams with the imports of a rank, compressed (``imports``, ``imports_of``)."""

_QUERY = b"where?"
_NUMBER_BYTES = 16
_PIECE = 1 << 16
_WRITTEN_S = 1.0  # between two pieces of a stack: the handler writes a line in several
_NEVER = float("inf")

Deliver = Callable[[int, bytes], None]

encode = msgspec.msgpack.Encoder().encode
"""Encodes a report on a rank."""

decode = msgspec.msgpack.Decoder[dict[str, Any]](dict[str, Any]).decode
"""Decodes a report on a rank."""


def connect(address: str) -> socket.socket:
    """Connect a rank to its agent.

    Raises
    ------
    OSError
        If the agent is gone, or is another user's.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.connect(f"\0{address.rpartition('/')[0][1:]}")
        if peer_of(channel)[1] != os.geteuid():
            raise ConnectionRefusedError
    except OSError:
        channel.close()
        raise
    return channel


def imports(content: dict[str, Any]) -> bytes:
    """Return a datagram with the imports of a rank."""
    return IMPORTED + zlib.compress(encode(content))


def imports_of(data: bytes) -> dict[str, Any]:
    """Return the imports in such a datagram."""
    return decode(zlib.decompress(data.removeprefix(IMPORTED)))


def register(channel: socket.socket, address: str, reader: int) -> None:
    """Send the agent the number of this rank, and the end of the pipe from which to read its stacks."""
    socket.send_fds(channel, [address.rpartition("/")[2].encode()], [reader])


@dataclass
class _ConnectedRank:
    """A rank that can be queried."""

    channel: socket.socket
    pid: int
    pipe: int
    is_queried: bool = False  # a query was sent, and not answered yet
    is_awaited: bool = False  # a report was requested
    stack: bytes | None = None  # the part received so far, during an inspection from outside
    due: float = _NEVER  # when the timer fires
    timer: Timer | None = None

    def set_timer(self, timer: Timer | None, due: float = _NEVER) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.due = timer, due

    def close(self) -> None:
        self.set_timer(None)
        self.channel.close()
        os.close(self.pipe)


class RankChannels:
    """The connections of an agent to its ranks.

    Parameters
    ----------
    report
        Receives the report on a rank.
    relay
        Receives a rank's messages to the controller.
    learn
        Receives the imports of a rank.
    """

    def __init__(
        self,
        loop: EventLoop,
        report: Deliver,
        relay: Deliver = lambda *_: None,
        learn: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._loop, self._deliver, self._relay, self._learn = loop, report, relay, learn
        self._ranks: dict[int, _ConnectedRank] = {}
        self._unregistered: set[socket.socket] = set()  # connections that have not sent their rank
        self._name = f"hvd-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listening.bind(f"\0{self._name}")
        self._listening.listen(128)
        loop.add_reader(self._listening.fileno(), self._accept)

    def variable(self, rank: int) -> dict[str, str]:
        """Return the variable that a rank needs to connect."""
        return {VARIABLE: f"@{self._name}/{rank}"}

    def query(self, rank: int, patience_s: float | None) -> None:
        """Query a rank; inspect it from outside if it has not answered after ``patience_s`` (None: never)."""
        connected = self._ranks.get(rank)
        if connected is None:
            self._report(rank, "absent")
            return
        connected.is_awaited = True
        if patience_s is not None and connected.stack is None and time.monotonic() + patience_s < connected.due:
            due = time.monotonic() + patience_s
            connected.set_timer(self._loop.call_later(patience_s, partial(self._inspect, rank, connected)), due)
        if not connected.is_queried:
            connected.is_queried = True
            with suppress(OSError):  # it has exited, which its channel will show
                connected.channel.send(_QUERY)

    def report_if_stopped(self, rank: int) -> None:
        """Report a rank that is stopped, without querying it."""
        if (connected := self._ranks.get(rank)) and is_stopped(connected.pid):
            self._report(rank, "stopped")

    def forward(self, rank: int, data: bytes) -> None:
        """Forward a message of the controller to a rank; drop it if the rank is absent, or does not read."""
        if connected := self._ranks.get(rank):
            with suppress(OSError):  # its channel will show it
                connected.channel.send(RELAYED + data)

    def drain(self, rank: int) -> None:
        """Handle the remaining messages of a rank that has exited."""
        while (connected := self._ranks.get(rank)) and select.select([connected.channel], [], [], 0)[0]:
            self._receive(rank, connected)

    def close(self) -> None:
        """Close all connections."""
        for channel in (self._listening, *self._unregistered):
            self._loop.remove_reader(channel.fileno())
            channel.close()
        for rank in [*self._ranks]:
            self._forget(rank)

    def _report(self, rank: int, state: str, **more: str) -> None:
        self._deliver(rank, encode({"state": state, **more}))

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        connection.setblocking(False)
        if peer_of(connection)[1] == os.geteuid():
            self._unregistered.add(connection)
            self._loop.add_reader(connection.fileno(), partial(self._register, connection))
        else:
            connection.close()

    def _register(self, connection: socket.socket) -> None:
        self._unregistered.remove(connection)
        self._loop.remove_reader(connection.fileno())
        number, pipes, _, _ = socket.recv_fds(connection, _NUMBER_BYTES, 1)
        rank = int(number) if number.isdigit() else -1
        if not pipes or rank < 0 or rank in self._ranks:  # a rank's child, which has inherited its variables
            connection.close()
            for pipe in pipes:
                os.close(pipe)
            return
        connected = self._ranks[rank] = _ConnectedRank(connection, peer_of(connection)[0], pipes[0])
        self._loop.add_reader(connection.fileno(), partial(self._receive, rank, connected))
        self._report(rank, "connected")

    def _forget(self, rank: int) -> None:
        connected = self._ranks.pop(rank)
        self._loop.remove_reader(connected.channel.fileno())
        self._loop.remove_reader(connected.pipe)
        connected.close()

    def _receive(self, rank: int, connected: _ConnectedRank) -> None:
        try:
            answer = connected.channel.recv(MESSAGE_BYTES)
        except OSError:
            answer = b""
        if answer.startswith(RELAYED):
            self._relay(rank, answer[len(RELAYED) :])
            return
        if answer.startswith(IMPORTED):
            self._learn(imports_of(answer))
            return
        is_awaited = self._end_query(connected)
        connected.is_queried = False
        if not answer:
            self._forget(rank)
        if is_awaited:
            self._deliver(rank, answer) if answer else self._report(rank, "absent")

    def _end_query(self, connected: _ConnectedRank) -> bool:
        """End a query and its inspection; return whether a report was requested."""
        self._loop.remove_reader(connected.pipe)
        connected.set_timer(None)
        is_awaited, connected.is_awaited, connected.stack = connected.is_awaited, False, None
        return is_awaited

    def _inspect(self, rank: int, connected: _ConnectedRank) -> None:
        if is_stopped(connected.pid):
            self._end_query(connected)
            self._report(rank, "stopped")
            return
        while select.select([connected.pipe], [], [], 0)[0] and os.read(connected.pipe, _PIECE):
            pass  # rest of an earlier inspection that was given up
        connected.stack = b""
        self._loop.add_reader(connected.pipe, partial(self._read, rank, connected))
        self._wait_for_piece(rank, connected)
        with suppress(ProcessLookupError):  # its channel will show it
            os.kill(connected.pid, STACK_SIGNAL)

    def _wait_for_piece(self, rank: int, connected: _ConnectedRank) -> None:
        connected.set_timer(self._loop.call_later(_WRITTEN_S, partial(self._report_stack, rank, connected)))

    def _read(self, rank: int, connected: _ConnectedRank) -> None:
        piece = os.read(connected.pipe, _PIECE)
        connected.stack = (connected.stack or b"") + piece
        if piece and not connected.stack.endswith(STACK_END):
            self._wait_for_piece(rank, connected)
        else:
            self._report_stack(rank, connected)

    def _report_stack(self, rank: int, connected: _ConnectedRank) -> None:
        stack = connected.stack or b""
        self._end_query(connected)
        self._report(rank, "silent", stack=stack.decode(errors="replace"))
