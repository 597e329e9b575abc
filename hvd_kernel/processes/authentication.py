"""How the launcher and an agent that calls it know each other: both hold the run's secret, and neither says it.

launcher: its number -> agent: its number, proof of both -> launcher: proof of both
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

ADDRESS_VARIABLE = (
    "HVD_LAUNCHER_DOOR"  # where an agent finds the launcher: @name on this host, else address,address:port
)

LENGTH = 32  # bytes of a number, and of a proof
LAUNCHER, AGENT = b"launcher", b"agent"


def number() -> bytes:
    """Return bytes that nobody has seen before."""
    return secrets.token_bytes(LENGTH)


def of(secret: str, who: bytes, numbers: bytes) -> bytes:
    """Return what only a holder of the secret can say in that role and that conversation."""
    return hmac.new(secret.encode(), who + numbers, hashlib.sha256).digest()


def holds(said: bytes, secret: str, who: bytes, numbers: bytes) -> bool:
    """Tell whether this is the proof."""
    return hmac.compare_digest(said, of(secret, who, numbers))


def introduce(connection: socket.socket, secret: str) -> bool:
    """Have the conversation, as the agent; tell whether it is the launcher who answers.

    Whoever hangs up has proved nothing: if it has read what we said the kernel tells of an end, else of a reset.
    """
    mine = number()
    try:
        numbers = _exactly(connection) + mine
        connection.sendall(mine + of(secret, AGENT, numbers))
        return holds(_exactly(connection), secret, LAUNCHER, numbers)
    except (ConnectionResetError, BrokenPipeError):
        return False


def _exactly(connection: socket.socket) -> bytes:
    said = b""
    while len(said) < LENGTH and (more := connection.recv(LENGTH - len(said))):
        said += more
    return said
