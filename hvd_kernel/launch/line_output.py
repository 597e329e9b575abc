"""Output multiplexer: writes the output of many ranks as whole lines with prefix, ``[1]<stdout>:text``, as horovodrun.

Terms.
  held   of a traceback on stderr that may end a rank: written later, so that the root cause comes last
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hvd_kernel.launch.outcome import begins_traceback
from hvd_kernel.launch.output_sinks import RankFile, Write

_TAIL = 25  # lines of every stderr that are kept
_MAX_LINE = 1 << 16  # bytes that are buffered until the end of their line
_HOLD_S = 3.0  # seconds after which the traceback of a rank that still runs is written
_HOLD_BYTES = 1 << 18


class OutputStream:
    """One rank's stdout or stderr: splits it into lines, adds the prefix, and keeps a copy in a file."""

    def __init__(self, sink: Write, prefix: Callable[[], bytes], copy: RankFile | None, *, holds: bool) -> None:
        self._sink, self._prefix, self._holds = sink, prefix, holds
        self._copy = copy
        self._rest = b""
        self._held: list[bytes] = []
        self._held_since = 0.0
        self._tail: deque[str] = deque(maxlen=_TAIL)

    @property
    def tail(self) -> tuple[str, ...]:
        """Return the traceback that is held, else the last lines."""
        return tuple(line.decode(errors="replace").rstrip("\r\n") for line in self._held) or tuple(self._tail)

    @property
    def held(self) -> tuple[bytes, ...]:
        """Return the lines that are held."""
        return tuple(self._held)

    def write(self, data: bytes) -> None:
        """Write the lines that these bytes complete; buffer the rest."""
        if self._copy is not None:
            self._copy.write(data)
        self._rest += data
        lines = self._rest.splitlines(keepends=True)
        whole = lines[-1].endswith(b"\n") or len(lines[-1]) > _MAX_LINE  # \r may be followed by \n
        self._rest = b"" if whole else lines.pop()
        self._lines(lines)

    def _lines(self, lines: list[bytes]) -> None:
        now: list[bytes] = []
        for line in lines:
            text = line.decode(errors="replace")
            self._tail.append(text.rstrip("\r\n"))
            if self._holds and not self._held and begins_traceback(text):
                self._held_since = time.monotonic()
                self._held.append(line)
            elif self._held:
                self._held.append(line)
            else:
                now.append(line)
        self._put(now)
        if self._held and sum(map(len, self._held)) > _HOLD_BYTES:
            self.release()

    def overdue(self, now: float) -> bool:
        """Return whether lines have been held long enough."""
        return bool(self._held) and now - self._held_since > _HOLD_S

    def release(self) -> None:
        """Write the held lines."""
        held, self._held = self._held, []
        self._put(held)

    def forget(self) -> None:
        """Drop the held lines."""
        self._held = []

    def finish(self) -> None:
        """Write the last line even if it is incomplete, and close the file, which later output opens again."""
        if self._rest:
            self._lines([self._rest + b"\n"])
            self._rest = b""
        if self._copy is not None:
            self._copy.close()

    def close(self) -> None:
        """Write all pending output."""
        self.finish()
        self.release()

    def _put(self, lines: list[bytes]) -> None:
        if lines:
            prefix = self._prefix()
            self._sink(b"".join(prefix + line for line in lines))


def prefixes(rank: int, name: str, *, prefix: bool, timestamp: bool) -> Callable[[], bytes]:
    """Return a function that makes the prefix of a rank's line."""
    label = f"[{rank}]<{name}>:".encode() if prefix else b""
    return lambda: stamp(timestamp) + label


def stamp(timestamp: bool) -> bytes:
    """Return the time for the prefix of a line, empty without ``timestamp``."""
    return time.asctime().encode() if timestamp else b""


def folder_of(base: str, rank: int, np: int) -> Path:
    """Create and return the folder of a rank's files; numbers have equal length, so that the names sort."""
    folder = Path(base) / f"rank.{rank:0{len(str(np - 1))}d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def standard() -> tuple[IO[Any], IO[Any]]:
    """Return the present stdout and stderr of this process."""
    return sys.stdout, sys.stderr
