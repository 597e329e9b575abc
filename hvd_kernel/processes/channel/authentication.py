"""Connections of agents: the listening socket, and the authentication of a channel by a secret that is never sent.

Challenge and response: controller: its nonce -> agent: its nonce, HMAC of both -> controller: HMAC of both.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections.abc import Callable

from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Message
from hvd_kernel.processes.event_loop import EventLoop

ADDRESS_VARIABLE = "HVD_LAUNCHER_ADDRESS"
"""Variable with the address of an agent's controller: @name on this host, else address,address:port."""

LENGTH = 32  # bytes of a nonce, and of a proof
CONTROLLER, AGENT = b"launcher", b"agent"


def nonce() -> bytes:
    """Return a nonce: random bytes, used once."""
    return secrets.token_bytes(LENGTH)


def proof(secret: str, role: bytes, nonces: bytes) -> bytes:
    """Return the HMAC that proves knowledge of the secret, for one role and the nonces of one connection."""
    return hmac.new(secret.encode(), role + nonces, hashlib.sha256).digest()


def proves(received: bytes, secret: str, role: bytes, nonces: bytes) -> bool:
    """Return whether the received bytes are the proof."""
    return hmac.compare_digest(received, proof(secret, role, nonces))


def controller_key(secret: str) -> str:
    """Return the key of ipyparallel's messages in a cluster whose agents know this secret.

    Both ends derive it, so that it is never sent.
    """
    return hmac.new(secret.encode(), b"controller", hashlib.sha256).hexdigest()


class ProvenChannel(ControlChannel):
    """The controller's end of a channel; messages are accepted only after the agent has proved to know the secret."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        super().__init__(connection, connection)
        self.proven = False
        self._secret, self._nonce, self._received = secret, nonce(), b""
        self._unsent += self._nonce
        self.flush()

    def receive(self) -> list[Message]:
        """Return the messages that are complete, ChannelClosed as the last one. May block."""
        messages = super().receive()
        if self.closed and not self.proven:
            self.close()
        return messages

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes; return the messages that are complete."""
        return super().feed(data) if self.proven else self._check(data)

    def _check(self, data: bytes) -> list[Message]:
        """Check the agent's nonce and proof, after which it sends nothing before it has received ours."""
        self._received += data
        nonces, received = self._nonce + self._received[:LENGTH], self._received[LENGTH:]
        self.proven = proves(received, self._secret, AGENT, nonces)
        if self.proven:
            self._unsent += proof(self._secret, CONTROLLER, nonces)
            self.flush()
        self.closed = not self.proven and len(received) >= LENGTH
        return [ChannelClosed()] if self.closed else []


def prove(connection: socket.socket, secret: str) -> bool:
    """Exchange proofs as the agent; return whether the other end is the controller.

    An end that disconnects has proved nothing: Linux reports the end of the stream if it has read our bytes, else a
    reset.
    """
    ours = nonce()
    try:
        nonces = _receive_exactly(connection) + ours
        connection.sendall(ours + proof(secret, AGENT, nonces))
        return proves(_receive_exactly(connection), secret, CONTROLLER, nonces)
    except (ConnectionResetError, BrokenPipeError):
        return False


def _receive_exactly(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < LENGTH and (more := connection.recv(LENGTH - len(received))):
        received += more
    return received


# Listening


_BACKLOG = 128


class Listening:
    """A listening socket for agents, for the thread of the loop: TCP if other hosts connect, else an abstract name.

    Its peers are not authenticated.

    Parameters
    ----------
    loop
        Calls ``accept`` for each connection, from ``open`` to ``close``.
    host
        The address of this host to listen at, "" for all of them; None: only for processes of this host.
    accept
        Receives the connection, which is blocking.
    """

    def __init__(self, loop: EventLoop, host: str | None, accept: Callable[[socket.socket], object]) -> None:
        self._loop, self._accept = loop, accept
        is_here = host is None
        family, where = (socket.AF_UNIX, f"\0hvd-{secrets.token_hex(16)}") if is_here else (socket.AF_INET, (host, 0))
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(where)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self._place = f"@{name[1:].decode()}" if is_here else f":{name[1]}"

    def address(self, hosts: str) -> str:
        """Return the address for agents: ``host,host:port``, or ``@name`` if it is only for this host."""
        return self._place if self._place.startswith("@") else hosts + self._place

    def open(self) -> None:
        """Accept connections from now on."""
        self._loop.add_reader(self._socket.fileno(), self._accept_next)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept_next(self) -> None:
        connection, _ = self._socket.accept()
        connection.setblocking(True)
        self._accept(connection)
