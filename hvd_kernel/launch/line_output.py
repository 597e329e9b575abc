"""Output multiplexer: bytes of many ranks become whole lines, each with its rank: ``[1]<stdout>:text``, as horovodrun.

Terms.
  held   a traceback on stderr that may be the last of a rank: kept back, so that the root cause's comes last
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hvd_kernel.launch.outcome import begins_traceback

_TAIL = 25  # lines that are remembered of every stderr
_LONGEST = 1 << 16  # bytes that wait for the end of their line
_HOLD_S = 3.0  # a rank that has written a traceback and lives on is heard after this time
_HOLD_BYTES = 1 << 18

Write = Callable[[bytes], None]


def writer(stream: IO[Any] | None, otherwise: IO[Any]) -> Write:
    """Return how bytes get into a stream, text or binary, at once."""
    target = otherwise if stream is None else stream
    raw = getattr(target, "buffer", target)
    text = isinstance(raw, io.TextIOBase) or hasattr(raw, "encoding")
    target.flush()  # what it holds was said before

    def write(data: bytes) -> None:
        raw.write(data.decode(errors="replace") if text else data)
        raw.flush()

    return write


class OutputStream:
    """One rank's stdout or stderr: cuts it into lines, puts the prefix before them, keeps a copy in a file."""

    def __init__(self, sink: Write, prefix: Callable[[], bytes], copy: Path | None, *, holds: bool) -> None:
        self._sink, self._prefix, self._holds = sink, prefix, holds
        self._file = copy
        self._copy = copy.open("wb") if copy is not None else None
        self._rest = b""
        self._held: list[bytes] = []
        self._held_since = 0.0
        self._tail: deque[str] = deque(maxlen=_TAIL)

    @property
    def tail(self) -> tuple[str, ...]:
        """The traceback that is held, else the last lines."""
        return tuple(line.decode(errors="replace").rstrip("\r\n") for line in self._held) or tuple(self._tail)

    @property
    def held(self) -> tuple[bytes, ...]:
        """The lines that are kept back."""
        return tuple(self._held)

    def write(self, data: bytes) -> None:
        """Take bytes as they come."""
        if self._file is not None:
            self._copy = self._copy or self._file.open("ab")  # the rank has ended, and what it had started still writes
            self._copy.write(data)
            self._copy.flush()
        self._rest += data
        lines = self._rest.splitlines(keepends=True)
        whole = lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST  # after \r there may come \n
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
        """Tell whether what is held has waited long enough."""
        return bool(self._held) and now - self._held_since > _HOLD_S

    def release(self) -> None:
        """Write what is held."""
        held, self._held = self._held, []
        self._put(held)

    def forget(self) -> None:
        """Drop what is held."""
        self._held = []

    def finish(self) -> None:
        """Hardly any more will come: the last line may lack its end, and the file is closed."""
        if self._rest:
            self._lines([self._rest + b"\n"])
            self._rest = b""
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def close(self) -> None:
        """Write what is left."""
        self.finish()
        self.release()

    def _put(self, lines: list[bytes]) -> None:
        if lines:
            prefix = self._prefix()
            self._sink(b"".join(prefix + line for line in lines))


def prefixes(rank: int, name: str, *, prefix: bool, timestamp: bool) -> Callable[[], bytes]:
    """Return what stands before a line of a rank's."""
    label = f"[{rank}]<{name}>:".encode() if prefix else b""
    return lambda: stamp(timestamp) + label


def stamp(wanted: bool) -> bytes:
    """Return the time, if it is wanted before a line."""
    return time.asctime().encode() if wanted else b""


def folder_of(base: str, rank: int, np: int) -> Path:
    """Make and return the folder of a rank's files: numbers have equal length, so that they sort."""
    folder = Path(base) / f"rank.{rank:0{len(str(np - 1))}d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def standard() -> tuple[IO[Any], IO[Any]]:
    """Return this process's own streams, as they are now."""
    return sys.stdout, sys.stderr
