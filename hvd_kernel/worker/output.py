"""Output of this rank: all of it is written to the log, a limited part is sent to the notebook.

sys.stdout writes directly to the log's file, as does descriptor 1; the I/O thread reads that file several times a
second while a cell runs. So text of C code, forked children or a dying rank is included in order, and the output does
not use memory of the rank. Text written between cells is only in the log.

``Forward`` is pure: it reads through a function, and returns the text to send, which depends on the text alone and not
on its timing.

Terms.
  head       the beginning of a cell's text, sent immediately, until its room is full
  flood      the text after a full head: the notebook gets samples of it while the cell runs, and its tail at the end,
             after the exact number of lines between head and tail
  collapsed  text without the parts that a following carriage return overwrites: a progress bar takes no room
"""

from __future__ import annotations

import codecs
import ctypes
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.protocol import rank_log
from hvd_kernel.settings import lookup

_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE: offsets do not change
_MAX_UNLOGGED = 1 << 20
_libc_with_errno = ctypes.CDLL(None, use_errno=True)


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
        if _libc_with_errno.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_longlong(0), ctypes.c_longlong(keep_from)) == 0:
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


_CHUNK = 64 * 1024
_COUNT = 1 << 20
_SAMPLE = 8 * 1024
_RESENT = 16
"""Size of overwritten text, in heads, from which it counts as a flood itself."""

_OVERWRITTEN = re.compile(r"\r(?:[^\r\n\x1b]|\x1b\[[0-9;]*m)*(?=\r[^\n])")
_CONTINUATION = bytes(range(0x80, 0xC0))

Read = Callable[[int, int], bytes]
Piece = dict[str, Any]
"""Keys of a stream message: text, and live (a sample) or skipped (left out before it: rest, lines, beginning)."""


@dataclass(frozen=True)
class Room:
    """Limits of the text that a cell may send of a rank's stream."""

    head: int
    tail: int

    @classmethod
    def for_ranks(cls, n: int) -> Room:
        """Return the limits for n ranks of a notebook: twice what a cell's stored output keeps of each rank."""
        head = max(64 * 1024, 2 * 1024 * 1024 // max(n, 4))
        return cls(head, head // 2)


class Forward:
    """Forwarding of one cell's part of a stream's file, which starts at ``begin``."""

    def __init__(self, read: Read, begin: int, room: Room) -> None:
        self._read = read
        self._room = room
        self._at = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = self._open = self._sent = 0  # room used by complete lines and by the open line; all text sent
        self._flood: Gap | None = None

    def pump(self, end: int) -> Iterator[Piece]:
        """Return the new text up to ``end``."""
        sent: list[str] = []
        while self._flood is None and self._at < end:
            stop = min(end, self._at + min(_CHUNK, self._left()))
            sent.append(self._collapse(self._decoder.decode(self._read(self._at, stop))))
            self._at = stop
            if self._left() <= 0:
                self._at -= len(self._decoder.getstate()[0])
                self._flood = Gap(self._read, self._at)
        if text := "".join(sent):
            yield {"text": text}
        if self._flood is not None and self._at < end:
            self._flood.count(end - self._room.tail)
            sample = self._read(max(self._at, end - _SAMPLE), end)
            self._at = end
            yield {"text": sample.partition(b"\n")[2].decode(errors="replace"), "live": True}

    def finish(self, end: int) -> Iterator[Piece]:
        """Return the rest of the cell."""
        yield from self.pump(end)
        if self._flood is None:
            if rest := self._decoder.decode(b"", final=True):
                yield {"text": rest}
            return
        start = self._flood.close(max(self._flood.begin, end - self._room.tail), end)
        skipped = [self._flood.rest, self._flood.lines, self._flood.beginning]
        yield {"text": self._read(start, end).decode(errors="replace"), "skipped": skipped}

    def _left(self) -> int:
        return min(self._room.head - self._whole - self._open, _RESENT * self._room.head - self._sent)

    def _collapse(self, text: str) -> str:
        collapsed = _OVERWRITTEN.sub("", text)
        self._sent += len(collapsed)
        before, newline, after = collapsed.rpartition("\n")
        if newline:
            self._whole += (0 if before.startswith("\r") else self._open) + len(before) + 1
            self._open = len(after)
        else:
            self._open = len(collapsed) + (0 if collapsed.startswith("\r") else self._open)
        return collapsed


class Gap:
    """Part of a flood that is left out: end of the head's last line, lines, begin of the tail's first line."""

    def __init__(self, read: Read, begin: int) -> None:
        self.begin = begin
        self.rest = self.lines = self.beginning = 0
        self._read = read
        self._at = begin

    def count(self, end: int) -> None:
        """Leave out everything before ``end``."""
        while self._at < end:
            data = self._read(self._at, min(end, self._at + _COUNT))
            if not data:
                return
            self._at += len(data)
            if not self.lines:
                line, newline, data = data.partition(b"\n")
                self.rest = _after_return(self.rest, line)
                self.lines = len(newline)
            if self.lines:
                self.lines += data.count(b"\n")
                _, newline, line = data.rpartition(b"\n")
                self.beginning = _after_return(0 if newline else self.beginning, line)

    def close(self, start: int, end: int) -> int:
        """Return where the tail begins, at a line's start if there is one; everything before it is left out."""
        if start > self.begin:
            data = self._read(start, end)
            newline, back = data.find(b"\n"), data.find(b"\r")
            if 0 <= newline < len(data) - 1:
                start += newline + 1
            elif back >= 0:
                start += back
            else:
                start += next((i for i, byte in enumerate(data[:4]) if byte not in _CONTINUATION), 0)
        self.count(start)
        return start


def _after_return(before: int, line: bytes) -> int:
    r"""Return the characters of a line that continues in a piece of UTF-8; those before a ``\r`` do not count."""
    _, back, rest = line.rpartition(b"\r")
    return (0 if back else before) + len(rest.translate(None, _CONTINUATION))


_TICK_S = 0.1
_PATIENCE_S = 10.0
_C_FILES = ("stdout", "stderr")
_libc = ctypes.CDLL(None)

Publish = Callable[[str, dict[str, Any], dict[str, Any]], None]


class RankStream(io.TextIOBase):
    """sys.stdout or sys.stderr of a rank."""

    def __init__(self, name: str, log: LogFile) -> None:
        self.name = name
        self._log = log
        self._descriptor = rank_log.STREAMS.index(name) + 1

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the log."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write to the log; the notebook gets the text at the next tick."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._log.append(encoded(text))
        return len(text)

    def flush(self) -> None:
        """Do nothing: written text is in the log already, and sent at the next tick."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: the log is no terminal."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that writes to the same log, for subprocesses and C code."""
        return self._descriptor


class OutputCapture:
    """Both streams of the rank, and their forwarding. ``_pump`` and its callees run on the I/O thread."""

    def __init__(self, rank: int, size: int, logs: Path, io_thread: Any, publish: Publish) -> None:
        limit = int(lookup.value("HVD_LOG_MAX_MB", os.environ)) << 20
        self._pid = os.getpid()
        self._thread = io_thread
        self._publish = publish
        self._default_room = self._room = Room.for_ranks(size)  # of cells, and of the running block
        self._index = Index(logs, rank)
        self._logs = {name: LogFile(logs, rank, name, self._index, limit) for name in rank_log.STREAMS}
        self._forwards: dict[str, Forward] = {}  # by stream; empty between cells
        self._parent: dict[str, Any] = {}
        self._begun = ("", -1)  # kernel and number of the cell in the index's last row
        self._due: Callable[[], None] | None = None  # updates of displays that wait for the next tick
        self.streams = tuple(RankStream(name, log) for name, log in self._logs.items())

    def install(self) -> None:
        """Replace sys.stdout, sys.stderr and descriptors 1 and 2.

        Also open the sockets between this thread and the I/O thread, before a cell can use up the file descriptors.
        """
        _flush_c()
        for descriptor, log in enumerate(self._logs.values(), start=1):
            log.capture(descriptor)
        sys.stdout, sys.stderr = self.streams
        self._thread.schedule(lambda: self._thread.schedule(_nothing))

    @contextmanager
    def during(self, parent: dict[str, Any], cell: int, kernel: str = "", room: Room | None = None) -> Iterator[None]:
        """Send the output until the block ends as output of the request ``parent``.

        kernel: the kernel that numbers the cells. All parts of one of its cells are one section of the log.
        room: limits of the text; by default a notebook's limits for a rank.
        """
        missing = self._missing()
        if self._begun != (kernel, cell):
            self._begun = kernel, cell
            self._index.add(cell=cell, **{name: log.size for name, log in self._logs.items()})
        self._on_thread(lambda: self._begin(parent, room or self._default_room))
        try:
            yield
        finally:
            _flush_c()
            self._on_thread(lambda: self._end(missing))

    def flush(self) -> None:
        """Send new text now, before another message that must arrive after it."""
        if os.getpid() == self._pid and self._forwards:
            self._on_thread(self._pump)

    def at_tick(self, act: Callable[[], None]) -> None:
        """Call a function once, the next time that text is sent."""
        self._due = act

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Publish another message as output of the cell's request."""
        self._publish(kind, content, self._parent)

    def display_error(self, text: str) -> None:
        """Write a traceback to this rank's stderr, even if the user's code has replaced sys.stderr."""
        self._logs["stderr"].append(encoded(f"{text}\n"))

    def log(self, text: str) -> None:
        """Write to the log of stderr only. Between cells: during a cell the text is also sent."""
        self._logs["stderr"].append(encoded(text))

    def restart(self) -> None:
        """Forget the cell's text so far: the notebook clears its output."""
        self._on_thread(self._from_here)

    def _on_thread(self, act: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread.thread:
            act()
            return
        done = threading.Event()

        def task() -> None:
            try:
                act()
            finally:
                done.set()

        self._thread.schedule(task)
        done.wait(_PATIENCE_S)

    def _begin(self, parent: dict[str, Any], room: Room) -> None:
        self._parent, self._room = parent, room
        for log in self._logs.values():
            log.pop_unlogged()  # of the time between cells
        self._from_here()
        self._tick(parent)

    def _from_here(self) -> None:
        if self._parent:
            self._forwards = {name: Forward(log.read, log.size, self._room) for name, log in self._logs.items()}

    def _tick(self, parent: dict[str, Any]) -> None:
        if self._parent is parent:
            self._pump()
            self._thread.io_loop.call_later(_TICK_S, self._tick, parent)

    def _pump(self) -> None:
        for name, forward in self._forwards.items():
            for at, data in self._logs[name].pop_unlogged():
                self._send(name, forward.pump(at))
                self._send(name, iter([{"text": data.decode(errors="replace")}]))
            self._send(name, forward.pump(self._logs[name].size))
            self._logs[name].shrink()
        due, self._due = self._due, None
        if due is not None:
            due()

    def _end(self, missing_before: int) -> None:
        self._pump()
        for name, forward in self._forwards.items():
            self._send(name, forward.finish(self._logs[name].size))
        if lost := self._missing() - missing_before:
            reason = next(log.loss_reason for log in self._logs.values() if log.missing)
            text = f"{lost:,} bytes of this cell are not in this rank's log: {reason}\n"
            self._send("stderr", iter([{"text": text}]))
        self._forwards, self._parent = {}, {}

    def _send(self, name: str, pieces: Iterator[dict[str, Any]]) -> None:
        for piece in pieces:
            if piece["text"] or "skipped" in piece:
                self._publish("stream", {"name": name, **piece}, self._parent)

    def _missing(self) -> int:
        return sum(log.missing for log in self._logs.values())


def encoded(text: str) -> bytes:
    """Return UTF-8 with lone surrogates, which Python strings may hold, replaced by U+FFFD, and pairs joined."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _nothing() -> None:
    pass


def _flush_c() -> None:
    """Flush the buffers of the C library and of Python's original streams."""
    for name in _C_FILES:
        _libc.fflush(ctypes.c_void_p.in_dll(_libc, name))
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # None, closed, or a full disk
            stream.flush()  # type: ignore[union-attr]
