"""The rank's log: two files that always take what is written, and the index beside them.

Files rather than pipes: whoever writes to descriptor 1 or 2, be it C code that holds the interpreter's lock or a forked
child, never waits for a reader. What does not fit on the disk is kept in memory for the notebook and noted in the index
as soon as there is room again.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path

from hvd_kernel.protocol import rank_log

_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE: offsets stay what they are
_MAX_UNLOGGED = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Index:
    """Rows of the index; those that cannot be written now come with the next."""

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
    """One stream's file. ``append`` is for any thread, also of a forked child; the rest for one thread."""

    def __init__(self, logs: Path, rank: int, stream: str, index: Index, limit: int) -> None:
        self.stream = stream
        self.missing = 0  # bytes since the rank began
        self._fd = private_file(rank_log.path(logs, rank, stream))
        self._index = index
        self._limit = limit
        self._first = 0
        self._lost = 0  # bytes that the next row will name
        self.why = ""  # the reason of the latest
        self._unlogged: list[tuple[int, bytes]] = []
        self._unlogged_bytes = 0

    def capture(self, descriptor: int) -> None:
        """Let everything that is written to a descriptor of this process and its children come here."""
        os.dup2(self._fd, descriptor)

    @property
    def size(self) -> int:
        """Where the next byte will stand."""
        return os.fstat(self._fd).st_size

    def append(self, data: bytes) -> None:
        """Write; never fails, never waits for anybody."""
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._keep(data, error.strerror or "error")
        else:
            if self._lost:
                lost, self._lost = self._lost, 0
                self._index.add(lost=self.stream, at=self.size, bytes=lost, why=self.why)

    def read(self, begin: int, end: int) -> bytes:
        """Return a piece of the file, nothing where the disk does not give it."""
        try:
            return os.pread(self._fd, end - begin, begin)
        except OSError:
            return b""

    def take_unlogged(self) -> list[tuple[int, bytes]]:
        """Return what could not be written and where it would stand, as far as it was kept; once."""
        pieces, self._unlogged, self._unlogged_bytes = self._unlogged, [], 0
        return pieces

    def shrink(self) -> None:
        """Give up the older half when the file has reached its limit; where the file system cannot, it just grows."""
        size = self.size
        if size - self._first <= self._limit:
            return
        keep_from = size - self._limit // 2
        if _libc.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_longlong(0), ctypes.c_longlong(keep_from)) == 0:
            self._index.add(first=self.stream, at=keep_from)
        self._first = keep_from

    def _keep(self, data: bytes, why: str) -> None:
        self.why = why
        self._lost += len(data)
        self.missing += len(data)
        if self._unlogged_bytes < _MAX_UNLOGGED:
            at = self.size  # before the look at the list: in a call of the system another thread may take it
            self._unlogged.append((at, data))
            self._unlogged_bytes += len(data)


def private_file(path: Path) -> int:
    """Open a file that only this user can read, for appending; a rank that replaces another goes on in its files."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)
    except OSError:  # a full disk: ranks must start all the same, and every write will say what is wrong
        return os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC)
