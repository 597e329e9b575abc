"""JSON lines between a notebook's kernel and the supervisor of its cluster, over two pipes or one socket."""

from __future__ import annotations

import json
import os
import select
import threading
from contextlib import suppress
from typing import Any, Protocol


def is_ready(descriptor: int, within: float | None = 0.0) -> bool:
    """Tell whether a descriptor has something to read, or a pidfd's process has ended, ``within`` seconds."""
    return bool(select.select([descriptor], [], [], within)[0])


class Channel(Protocol):
    """A pipe's end, or a socket: whoever has it closes it by forgetting it."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def close(self) -> None:
        """Give it up."""


class Line:
    """One end. ``say`` is for any thread, ``read`` for one."""

    def __init__(self, incoming: Channel, outgoing: Channel) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._heard = b""
        self._open = True
        self._writing = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor to wait on for ``read``."""
        return self._incoming.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Return what was said since the last call, with {"end": True} when the other end is gone. May block."""
        try:
            said = os.read(self.fileno(), 1 << 16)
        except ConnectionError:
            said = b""
        *lines, self._heard = (self._heard + said).split(b"\n")
        words = list(map(json.loads, lines))
        return words if said else [*words, {"end": True}]

    def say(self, word: dict[str, Any]) -> None:
        """Tell the other end, which may be gone, one thing."""
        data = json.dumps(word).encode() + b"\n"
        with self._writing, suppress(ConnectionError):
            while data and self._open:
                data = data[os.write(self._outgoing.fileno(), data) :]

    def close(self) -> None:
        """Hang up. Idempotent."""
        with self._writing:
            self._open = False
            self._incoming.close()
            self._outgoing.close()
