"""What the launcher and its agents say to each other: frames over an agent's stdin and stdout, or a socket.

Words.
  frame   kind (1 byte), rank (4), length (4), then so many bytes
  magic   what an agent says before its first frame: a remote shell may greet with words of its own
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"\x00hvd-agent-1\x00"
_HEAD = struct.Struct("!BiI")


class Kind(IntEnum):
    """What a frame is about."""

    HELLO = 1  # agent: JSON, how its host can be reached
    PLAN = 2  # launcher: JSON, what to start
    STDIN = 3  # launcher: bytes for a rank's stdin; none: its end
    TAKEN = 4  # agent: the rank has taken them, send more
    STDOUT = 5  # agent: bytes that a rank wrote
    STDERR = 6
    EXIT = 7  # agent: a rank's end, its status as text
    STOP = 8  # launcher: end the ranks; seconds until they are killed, as text
    ERROR = 9  # agent: why the plan cannot be followed
    DISMISSED = 10  # agent: somebody else than the launcher has it end its rank
    KILLED = 12  # agent: it has killed the rank, or the kernel has, for a limit; why, as text
    SO_FAR = 11  # launcher: say all that was said so far, and then this; agent: that was it


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: Kind
    rank: int = 0
    payload: bytes = b""

    def pack(self) -> bytes:
        """Return it as bytes."""
        return _HEAD.pack(self.kind, self.rank, len(self.payload)) + self.payload


class Reader:
    """From bytes, as they come, to frames."""

    def __init__(self, *, expects_magic: bool) -> None:
        self._bytes = bytearray()
        self._open = not expects_magic

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes; return the frames that are complete now."""
        self._bytes += data
        if not self._open:
            before, magic, after = self._bytes.partition(MAGIC)
            self._open, self._bytes = bool(magic), after if magic else before
        frames: list[Frame] = []
        while self._open and len(self._bytes) >= _HEAD.size:
            kind, rank, length = _HEAD.unpack_from(self._bytes)
            end = _HEAD.size + length
            if len(self._bytes) < end:
                break
            frames.append(Frame(Kind(kind), rank, bytes(self._bytes[_HEAD.size : end])))
            del self._bytes[:end]
        return frames
