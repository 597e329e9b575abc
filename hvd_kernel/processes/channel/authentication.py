"""Authentication of a control channel: by the user of the peer's process, or by a secret that is never sent.

With a secret (challenge and response): controller: its nonce -> agent: its nonce, HMAC of both -> controller: HMAC of
both.
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

LENGTH = 32  # bytes of a nonce, and of a proof
CONTROLLER, AGENT = b"launcher", b"agent"


def nonce() -> bytes:
    """Return a nonce: random bytes, used once."""
    return secrets.token_bytes(LENGTH)


def proof(secret: str, role: bytes, nonces: bytes) -> bytes:
    """Return the HMAC that proves to have the secret: in one role, for the nonces of one connection."""
    return hmac.new(secret.encode(), role + nonces, hashlib.sha256).digest()


def proves(said: bytes, secret: str, role: bytes, nonces: bytes) -> bool:
    """Tell whether this is the proof."""
    return hmac.compare_digest(said, proof(secret, role, nonces))


def controller_key(secret: str) -> str:
    """Return the key of ipyparallel's messages in a cluster whose agents prove to have this secret.

    Both ends make it, so that it is never sent.
    """
    return hmac.new(secret.encode(), b"controller", hashlib.sha256).hexdigest()


class ProvenChannel(ControlChannel):
    """The controller's end of a channel whose agent first proves that it holds the secret; nothing counts before."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        super().__init__(connection, connection)
        self.proven = False
        self._secret, self._nonce, self._said = secret, nonce(), b""
        self._unsent += self._nonce
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
        nonces, said = self._nonce + self._said[:LENGTH], self._said[LENGTH:]
        self.proven = proves(said, self._secret, AGENT, nonces)
        if self.proven:
            self._unsent += proof(self._secret, CONTROLLER, nonces)
            self.flush()
        self.closed = not self.proven and len(said) >= LENGTH
        return [ChannelClosed()] if self.closed else []


def prove(connection: socket.socket, secret: str) -> bool:
    """Exchange proofs, as the agent; return whether the other end is the controller.

    Whoever hangs up has proved nothing: if it has read what we said the kernel tells of an end, else of a reset.
    """
    mine = nonce()
    try:
        nonces = _exactly(connection) + mine
        connection.sendall(mine + proof(secret, AGENT, nonces))
        return proves(_exactly(connection), secret, CONTROLLER, nonces)
    except (ConnectionResetError, BrokenPipeError):
        return False


def _exactly(connection: socket.socket) -> bytes:
    said = b""
    while len(said) < LENGTH and (more := connection.recv(LENGTH - len(said))):
        said += more
    return said
