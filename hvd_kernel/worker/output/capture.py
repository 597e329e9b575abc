"""Capture of this rank's output: all of it is written to the log, a limited part is sent to the notebook.

sys.stdout writes directly to the log's file, as does descriptor 1; the I/O thread reads that file several times a
second while a cell runs. So text of C code, forked children or a dying rank is included in order, and the output does
not use memory of the rank. Text written between cells is only in the log.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hvd_kernel.protocol import rank_log
from hvd_kernel.settings import lookup
from hvd_kernel.worker.output.forward import Forward, Room
from hvd_kernel.worker.output.log_file import Index, LogFile

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
