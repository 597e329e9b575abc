"""Destinations of the ranks' output: streams and files, whose errors never stop the training.

A disk may be full or over its quota, or a device gone. What cannot be written is counted, and reported at the end of
the job. Only a pipe whose reader is gone is an error, as in ``hvdrun ... | head``.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hvd_kernel.formatting.units import plural

Write = Callable[[bytes], None]

OLDER = ".1"
"""Suffix of the file that a full one is renamed to."""


class OutputLoss:
    """The output of a job that could not be written, by destination."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._reasons: dict[str, str] = {}  # the first of each destination

    def record(self, name: str, count: int, error: OSError) -> None:
        """Count bytes that a destination has not accepted."""
        self.bytes[name] = self.bytes.get(name, 0) + count
        self._reasons.setdefault(name, error.strerror or str(error))

    @property
    def text(self) -> str:
        """Return a sentence on what was lost; empty if nothing was."""
        parts = [f"{plural(count, 'byte')} of {name} ({self._reasons[name]})" for name, count in self.bytes.items()]
        return f"output was lost: {', '.join(parts)}" if parts else ""


def writer(stream: IO[Any] | None, default: IO[Any], loss: OutputLoss | None = None, name: str = "output") -> Write:
    """Return a function that writes bytes to a stream, text or binary, without a buffer.

    Parameters
    ----------
    stream, default
        The stream; None: the default.
    loss, name
        Where bytes that the stream does not accept are counted, under this name; None: nowhere.
    """
    target = default if stream is None else stream
    raw = getattr(target, "buffer", target)
    text = isinstance(raw, io.TextIOBase) or hasattr(raw, "encoding")
    target.flush()  # its buffered text comes first
    raw = getattr(raw, "raw", raw)  # a buffer would keep what it cannot write, and fail once more at exit

    def write(data: bytes) -> None:
        try:
            if isinstance(raw, io.RawIOBase):
                _write_all(raw, data)
            else:
                raw.write(data.decode(errors="replace") if text else data)
                raw.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if loss is not None:
                loss.record(name, len(data), error)

    return write


def write_stderr(text: str) -> None:
    """Write a message of hvdrun to stderr, which may be a file on a full disk."""
    writer(None, sys.stderr)(text.encode())


def report_loss(loss: OutputLoss, write: Write) -> None:
    """Write what was lost, once, at the end of a job."""
    if loss.text:
        write(f"hvdrun: {loss.text}\n".encode())


def _write_all(raw: io.RawIOBase, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = raw.write(rest)
        if written is None:  # another process has made it non-blocking, and it is full
            select.select([], [raw], [])
        else:
            rest = rest[written:]


class RankFile:
    """A file with the output of one rank. With ``most`` bytes it is renamed to ``NAME.1``, which it replaces."""

    def __init__(self, path: Path, loss: OutputLoss, name: str, most: int = 0) -> None:
        """Create the file. ``most``: 0 for no limit; ``loss``, ``name``: where lost bytes are counted."""
        self._path, self._loss, self._name, self._most = path, loss, name, most
        self._file: io.FileIO | None = None
        self._size = 0
        self._open("wb", b"")

    def write(self, data: bytes) -> None:
        """Append bytes; open the file again if it was closed: a rank's descendants outlive it."""
        if self._file is None:
            self._open("ab", data)
        while self._most and self._size + len(data) > self._most:
            fits = data.rfind(b"\n", 0, self._most - self._size) + 1
            if not (fits or self._size):
                fits = data.find(b"\n") + 1 or len(data)  # a line stays whole
            self._append(data[:fits])
            data = data[fits:]
            if not data:
                return
            self._rotate(data)
            if self._file is None:
                return  # the rest is counted as lost
        self._append(data)

    def _append(self, data: bytes) -> None:
        if self._file is None or not data:
            return
        try:
            _write_all(self._file, data)
            self._size += len(data)
        except OSError as error:
            self._loss.record(self._name, len(data), error)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, mode: str, data: bytes) -> None:
        try:
            self._file = io.FileIO(self._path, mode)
            self._size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            self._loss.record(self._name, len(data), error)

    def _rotate(self, data: bytes) -> None:
        self.close()
        try:
            self._path.replace(self._path.with_name(self._path.name + OLDER))
        except OSError as error:
            self._loss.record(self._name, len(data), error)
            return
        self._open("wb", data)
