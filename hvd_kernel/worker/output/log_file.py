"""Log of a rank: two files that accept every write, and their index.

Files instead of pipes: a writer to descriptor 1 or 2, such as C code that holds the GIL or a forked child, never waits
for a reader. Output that does not fit on the disk is kept in memory for the notebook, and recorded in the index as soon
as there is room again.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path

from hvd_kernel.protocol import rank_log

_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE: offsets do not change
_MAX_UNLOGGED = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Index:
    """Index of a log; rows that cannot be written are written with the next one."""

    def __init__(self, logs: Path, rank: int) -> None:
        self._fd = private_file(rank_log.path(logs, rank, "index"))
        self._due = b""
        self._lock = threading.Lock()

    def add(self, **row: object) -> None:
        """Append a row."""
        with self._lock:
            self._due += json.dumps(row).encode() + b"\n"
            try:
                self._due = self._due[os.write(self._fd, self._due) :]
            except OSError:
                return


class LogFile:
    """File of one stream. Any thread may call ``append``, also in a forked child; the rest is for one thread."""

    def __init__(self, logs: Path, rank: int, stream: str, index: Index, limit: int) -> None:
        self.stream = stream
        self.missing = 0  # bytes since the rank began
        self._fd = private_file(rank_log.path(logs, rank, stream))
        self._index = index
        self._limit = limit
        self._first = 0
        self._lost = 0  # bytes to be reported by the next row
        self.loss_reason = ""  # of the latest loss
        self._unlogged: list[tuple[int, bytes]] = []
        self._unlogged_bytes = 0

    def capture(self, descriptor: int) -> None:
        """Redirect a descriptor of this process and its children to this file."""
        os.dup2(self._fd, descriptor)

    @property
    def size(self) -> int:
        """Offset of the next byte."""
        return os.fstat(self._fd).st_size

    def append(self, data: bytes) -> None:
        """Append bytes; never fails and never waits."""
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._keep(data, error.strerror or "error")
        else:
            if self._lost:
                lost, self._lost = self._lost, 0
                self._index.add(lost=self.stream, at=self.size, bytes=lost, why=self.loss_reason)

    def read(self, begin: int, end: int) -> bytes:
        """Return a part of the file, b"" if the disk cannot read it."""
        try:
            return os.pread(self._fd, end - begin, begin)
        except OSError:
            return b""

    def pop_unlogged(self) -> list[tuple[int, bytes]]:
        """Return, and forget, the kept bytes that could not be written, with their offsets."""
        pieces, self._unlogged, self._unlogged_bytes = self._unlogged, [], 0
        return pieces

    def shrink(self) -> None:
        """Drop the older half when the file has reached its limit; without support of the file system it grows."""
        size = self.size
        if size - self._first <= self._limit:
            return
        keep_from = size - self._limit // 2
        if _libc.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_longlong(0), ctypes.c_longlong(keep_from)) == 0:
            self._index.add(first=self.stream, at=keep_from)
        self._first = keep_from

    def _keep(self, data: bytes, reason: str) -> None:
        self.loss_reason = reason
        self._lost += len(data)
        self.missing += len(data)
        if self._unlogged_bytes < _MAX_UNLOGGED:
            at = self.size  # before the list is used: another thread may pop it during the system call
            self._unlogged.append((at, data))
            self._unlogged_bytes += len(data)


def private_file(path: Path) -> int:
    """Open a file for appending that only this user can read; a rank that replaces another appends to its files."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)
    except OSError:  # a full disk: the rank starts anyway, and every write fails with the reason
        return os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC)
