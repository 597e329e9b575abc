"""Authentication of a control channel: by the system's word for a process's user, or by a secret that neither end says.

With a secret: controller: its number -> agent: its number, proof of both -> controller: proof of both.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Message

ADDRESS_VARIABLE = "HVD_LAUNCHER_ADDRESS"
"""Where an agent finds its controller: @name on this host, else address,address:port."""

LENGTH = 32  # bytes of a number, and of a proof
CONTROLLER, AGENT = b"launcher", b"agent"


def number() -> bytes:
    """Return bytes that nobody has seen before."""
    return secrets.token_bytes(LENGTH)


def proof(secret: str, role: bytes, numbers: bytes) -> bytes:
    """Return what only a holder of the secret can say in that role and that conversation."""
    return hmac.new(secret.encode(), role + numbers, hashlib.sha256).digest()


def proves(said: bytes, secret: str, role: bytes, numbers: bytes) -> bool:
    """Tell whether this is the proof."""
    return hmac.compare_digest(said, proof(secret, role, numbers))


class ProvenChannel(ControlChannel):
    """The controller's end of a channel whose agent first proves that it holds the secret; nothing counts before."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        super().__init__(connection, connection)
        self.proven = False
        self._secret, self._number, self._said = secret, number(), b""
        self._unsent += self._number
        self.flush()

    def receive(self) -> list[Message]:
        """Return the messages that are complete now, ChannelClosed at last. May block."""
        found = super().receive()
        if self.closed and not self.proven:
            self.close()
        return found

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes that have come; return the messages that are complete now."""
        return super().feed(data) if self.proven else self._check(data)

    def _check(self, data: bytes) -> list[Message]:
        """Take the proof; no more comes before ours."""
        self._said += data
        numbers, said = self._number + self._said[:LENGTH], self._said[LENGTH:]
        self.proven = proves(said, self._secret, AGENT, numbers)
        if self.proven:
            self._unsent += proof(self._secret, CONTROLLER, numbers)
            self.flush()
        self.closed = not self.proven and len(said) >= LENGTH
        return [ChannelClosed()] if self.closed else []


def prove(connection: socket.socket, secret: str) -> bool:
    """Have the conversation, as the agent; tell whether it is the controller who answers.

    Whoever hangs up has proved nothing: if it has read what we said the kernel tells of an end, else of a reset.
    """
    mine = number()
    try:
        numbers = _exactly(connection) + mine
        connection.sendall(mine + proof(secret, AGENT, numbers))
        return proves(_exactly(connection), secret, CONTROLLER, numbers)
    except (ConnectionResetError, BrokenPipeError):
        return False


def _exactly(connection: socket.socket) -> bytes:
    said = b""
    while len(said) < LENGTH and (more := connection.recv(LENGTH - len(said))):
        said += more
    return said
