"""Control channel between an agent and its controller: typed messages over two pipes, a unix socket or TCP.

On the wire a message is its length (4 bytes) followed by MessagePack. An agent sends ``PREAMBLE`` before its first
message, because a remote shell may print a greeting.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol, TypeVar, Union

import msgspec

from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.channel.messages import ChannelClosed, Message

PREAMBLE = b"\x00hvd-agent-2\x00"
CHUNK = 1 << 16
_LENGTH = struct.Struct("!I")
_TAGS = {kind.__name__ for kind in messages.ALL}
M = TypeVar("M", bound=Message)
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder[Any](Union[messages.ALL])  # noqa: UP007 - a union of a tuple


def is_ready(descriptor: int, within: float | None = 0.0) -> bool:
    """Wait ``within`` seconds (None: forever) until a descriptor is readable, or a pidfd's process has exited."""
    return bool(select.select([descriptor], [], [], within)[0])


def pack(message: Message) -> bytes:
    """Return a message as bytes for the wire."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def read_packed(stream: IO[bytes]) -> bytes:
    """Read the bytes of one message (``pack``); b"" if the stream ends before. Blocks."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return b""
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return head + body if len(body) == length else b""


def unpack(data: bytes | bytearray, kind: type[M]) -> M:
    """Return the message of this type at the beginning of ``data``.

    Raises
    ------
    msgspec.DecodeError
        If it is of another type, or incomplete.
    """
    (length,) = _LENGTH.unpack_from(data)
    return msgspec.msgpack.decode(memoryview(data)[_LENGTH.size : _LENGTH.size + length], type=kind)


class ChannelEnd(Protocol):
    """A pipe's end, or a socket; closed when it is garbage collected."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def close(self) -> None:
        """Close it."""


class ControlChannel:
    """One end of a channel. ``send`` is for any thread, everything else for one.

    Parameters
    ----------
    incoming, outgoing
        The ends to read and to write: two pipes, or twice the same socket.
    is_agent
        True for the agent's end, which sends the preamble; the other end waits for it.
    """

    def __init__(self, incoming: ChannelEnd, outgoing: ChannelEnd, *, is_agent: bool = False) -> None:
        self.closed = False  # the other end is gone
        self._incoming, self._outgoing = incoming, outgoing
        self._unread = bytearray()
        self._has_begun = is_agent
        self._unsent = bytearray(PREAMBLE if is_agent else b"")
        self._sending = threading.RLock()
        self._open = True

    def fileno(self) -> int:
        """Return the descriptor to wait on for ``receive``."""
        return self._incoming.fileno()

    @property
    def outgoing(self) -> int:
        """The descriptor to wait on for ``flush``."""
        return self._outgoing.fileno()

    @property
    def is_ready(self) -> bool:
        """True if there is something to receive, or the other end is gone."""
        return is_ready(self.fileno())

    def receive(self) -> list[Message]:
        """Return the messages that are complete, ChannelClosed as the last one. May block."""
        try:
            data = os.read(self.fileno(), CHUNK)
        except BlockingIOError:
            return []
        except OSError:  # a network connection may end with an error
            data = b""
        self.closed = not data
        return self.feed(data) if data else [ChannelClosed()]

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes; return the messages that are complete."""
        self._unread += data
        if not self._has_begun:
            before, preamble, after = self._unread.partition(PREAMBLE)
            self._has_begun, self._unread = bool(preamble), after if preamble else before
        complete: list[Message] = []
        while self._has_begun and len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            end = _LENGTH.size + length
            if len(self._unread) < end:
                break
            complete += _decode(bytes(self._unread[_LENGTH.size : end]))
            del self._unread[:end]
        return complete

    def send(self, message: Message) -> None:
        """Send a message completely; the other end may be gone, which ``receive`` will report. Any thread."""
        with self._sending:
            self.post(message)
            while self._unsent:
                self.flush()

    def post(self, message: Message) -> None:
        """Queue a message for the next calls of ``flush``."""
        self._unsent += pack(message)

    @property
    def unsent(self) -> int:
        """The number of queued bytes."""
        return len(self._unsent)

    def flush(self) -> None:
        """Write queued bytes, as many as the other end accepts now."""
        try:
            if self._open:
                del self._unsent[: os.write(self._outgoing.fileno(), self._unsent[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
        if self.closed or not self._open:
            self._unsent.clear()

    def finish(self) -> None:
        """Write all queued bytes, blocking; the other end may be gone."""
        os.set_blocking(self.outgoing, True)
        while self._unsent:
            self.flush()

    def end_sending(self) -> None:
        """Close the outgoing end, so that the other end is notified; messages can still be received. Idempotent."""
        with self._sending:
            self._open = False
            self._outgoing.close()

    def close(self) -> None:
        """Close both ends. Idempotent."""
        with self._sending:
            self._open = False
            self._incoming.close()
            self._outgoing.close()


def spawn(
    command: Sequence[str], *, stderr: int | IO[bytes], env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], ControlChannel]:
    """Start a program of ours that serves the channel's other end over its stdin and stdout."""
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, or ssh
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        start_new_session=True,  # Ctrl-C in a terminal, and Jupyter's interrupts, must reach only this process
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, ControlChannel(process.stdout, process.stdin)


def _decode(body: bytes) -> list[Message]:
    """Return the message; [] for a type that only a later version has."""
    try:
        return [_decoder.decode(body)]
    except msgspec.ValidationError:
        if msgspec.msgpack.decode(body)["type"] in _TAGS:
            raise
        return []
