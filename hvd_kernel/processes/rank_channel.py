"""Questions from an agent to its ranks: where is each, and what does it wait for? Nobody is asked but on demand.

Over the same connection a rank and the controller of the agent tell each other what is no business of the agent
(protocol/elastic.py): datagrams that begin with ``RELAYED`` are passed on as they are. One that begins with
``IMPORTED`` is for the agent itself, which has spares import the same.

A rank connects from ``hvd.init()`` to a socket of this host, in no folder, and brings a pipe. Asked, a thread of it
answers. One that gives no answer is looked at from outside: it is stopped, or a signal has it write its stacks to the
pipe, without Python's lock. Only processes of this user are let in.

What is told of a rank is a map in MessagePack: an answer as the rank gives it (``protocol.messages.Whereabouts``), or
``state`` alone:
  connected  it can be asked from now on
  absent     it cannot be asked: it has not called ``hvd.init()``, say
  stopped    by a signal or a debugger
  silent     with ``stack``: what it has written
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
"""Tells a rank the socket and its number: ``@name/3``."""

MESSAGE_BYTES = 1 << 18
"""The longest datagram."""

RELAYED = b"\0"
"""What a datagram between a rank and the controller begins with; questions and answers do not."""

IMPORTED = b"\1"
"""What a datagram begins with that says what a rank has imported, compressed (``imports``, ``imports_of``)."""

_QUESTION = b"where?"
_NUMBER_BYTES = 16
_PIECE = 1 << 16
_WRITTEN_S = 1.0  # from one piece of a stack to the next: the handler writes a line in many
_NEVER = float("inf")

Tell = Callable[[int, bytes], None]

encode = msgspec.msgpack.Encoder().encode
"""What is known of a rank, as it travels: a map."""

decode = msgspec.msgpack.Decoder[dict[str, Any]](dict[str, Any]).decode
"""Reads it."""


def connect(address: str) -> socket.socket:
    """Reach the agent, as a rank.

    Raises
    ------
    OSError
        It is not there, or is another user's.
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


def imports(said: dict[str, Any]) -> bytes:
    """Return a datagram that says what a rank has imported."""
    return IMPORTED + zlib.compress(encode(said))


def imports_of(data: bytes) -> dict[str, Any]:
    """Read such a datagram."""
    return decode(zlib.decompress(data.removeprefix(IMPORTED)))


def register(channel: socket.socket, address: str, reader: int) -> None:
    """Say which rank this is, and hand over the end from which its stacks are read."""
    socket.send_fds(channel, [address.rpartition("/")[2].encode()], [reader])


@dataclass
class _Connected:
    """A rank that can be asked."""

    channel: socket.socket
    pid: int
    pipe: int
    is_asked: bool = False  # it has not answered
    is_wanted: bool = False  # somebody waits for an answer
    stack: bytes | None = None  # as far as it has come, while it is looked at from outside
    due: float = _NEVER  # when the timer calls
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
    """All of an agent's.

    Parameters
    ----------
    tell
        What becomes of what is known of a rank.
    relay
        What becomes of what it says to others.
    learn
        What becomes of what it has imported.
    """

    def __init__(
        self,
        loop: EventLoop,
        tell: Tell,
        relay: Tell = lambda *_: None,
        learn: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._loop, self._tell, self._relay, self._learn = loop, tell, relay, learn
        self._ranks: dict[int, _Connected] = {}
        self._unregistered: set[socket.socket] = set()  # they have not said which rank they are
        self._name = f"hvd-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listening.bind(f"\0{self._name}")
        self._listening.listen(128)
        loop.add_reader(self._listening.fileno(), self._accept)

    def variable(self, rank: int) -> dict[str, str]:
        """Return what a rank is told."""
        return {VARIABLE: f"@{self._name}/{rank}"}

    def ask(self, rank: int, patience_s: float | None) -> None:
        """Ask a rank; one that has not answered by then is looked at from outside, None: it is left alone."""
        one = self._ranks.get(rank)
        if one is None:
            self._say(rank, "absent")
            return
        one.is_wanted = True
        if patience_s is not None and one.stack is None and time.monotonic() + patience_s < one.due:
            due = time.monotonic() + patience_s
            one.set_timer(self._loop.call_later(patience_s, partial(self._look, rank, one)), due)
        if not one.is_asked:
            one.is_asked = True
            with suppress(OSError):  # it has ended, which its channel will say
                one.channel.send(_QUESTION)

    def glance(self, rank: int) -> None:
        """Tell of a rank that is stopped, without a question to it."""
        if (one := self._ranks.get(rank)) and is_stopped(one.pid):
            self._say(rank, "stopped")

    def pass_on(self, rank: int, data: bytes) -> None:
        """Give a rank what the controller has for it; one that is not there, or reads nothing, goes without."""
        if one := self._ranks.get(rank):
            with suppress(OSError):  # its channel will say so
                one.channel.send(RELAYED + data)

    def drain(self, rank: int) -> None:
        """Take what a rank has said before its end."""
        while (one := self._ranks.get(rank)) and select.select([one.channel], [], [], 0)[0]:
            self._receive(rank, one)

    def close(self) -> None:
        """Hang up."""
        for channel in (self._listening, *self._unregistered):
            self._loop.remove_reader(channel.fileno())
            channel.close()
        for rank in [*self._ranks]:
            self._forget(rank)

    def _say(self, rank: int, state: str, **more: str) -> None:
        self._tell(rank, encode({"state": state, **more}))

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
        said, pipes, _, _ = socket.recv_fds(connection, _NUMBER_BYTES, 1)
        rank = int(said) if said.isdigit() else -1
        if not pipes or rank < 0 or rank in self._ranks:  # a rank's child, which has its variables
            connection.close()
            for pipe in pipes:
                os.close(pipe)
            return
        one = self._ranks[rank] = _Connected(connection, peer_of(connection)[0], pipes[0])
        self._loop.add_reader(connection.fileno(), partial(self._receive, rank, one))
        self._say(rank, "connected")

    def _forget(self, rank: int) -> None:
        one = self._ranks.pop(rank)
        self._loop.remove_reader(one.channel.fileno())
        self._loop.remove_reader(one.pipe)
        one.close()

    def _receive(self, rank: int, one: _Connected) -> None:
        try:
            answer = one.channel.recv(MESSAGE_BYTES)
        except OSError:
            answer = b""
        if answer.startswith(RELAYED):
            self._relay(rank, answer[len(RELAYED) :])
            return
        if answer.startswith(IMPORTED):
            self._learn(imports_of(answer))
            return
        wanted = self._settled(one)
        one.is_asked = False
        if not answer:
            self._forget(rank)
        if wanted:
            self._tell(rank, answer) if answer else self._say(rank, "absent")

    def _settled(self, one: _Connected) -> bool:
        """Look no more; return whether anybody waits for what is known."""
        self._loop.remove_reader(one.pipe)
        one.set_timer(None)
        wanted, one.is_wanted, one.stack = one.is_wanted, False, None
        return wanted

    def _look(self, rank: int, one: _Connected) -> None:
        if is_stopped(one.pid):
            self._settled(one)
            self._say(rank, "stopped")
            return
        while select.select([one.pipe], [], [], 0)[0] and os.read(one.pipe, _PIECE):
            pass  # of an earlier look that was given up
        one.stack = b""
        self._loop.add_reader(one.pipe, partial(self._read, rank, one))
        self._wait_for_piece(rank, one)
        with suppress(ProcessLookupError):  # its channel will say so
            os.kill(one.pid, STACK_SIGNAL)

    def _wait_for_piece(self, rank: int, one: _Connected) -> None:
        one.set_timer(self._loop.call_later(_WRITTEN_S, partial(self._tell_stack, rank, one)))

    def _read(self, rank: int, one: _Connected) -> None:
        piece = os.read(one.pipe, _PIECE)
        one.stack = (one.stack or b"") + piece
        if piece and not one.stack.endswith(STACK_END):
            self._wait_for_piece(rank, one)
        else:
            self._tell_stack(rank, one)

    def _tell_stack(self, rank: int, one: _Connected) -> None:
        stack = one.stack or b""
        self._settled(one)
        self._say(rank, "silent", stack=stack.decode(errors="replace"))
