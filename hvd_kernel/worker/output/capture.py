r"""Output capture of this rank: everything to its log, and to the notebook what fits.

sys.stdout writes straight to the log's file, to which descriptor 1 leads as well; the I/O thread reads that file, a few
times a second while a cell runs. So text that C code, forked children or a dying rank wrote is there too, in its order,
and a rank's memory does not grow with what it prints. Text that comes between cells is in the log only.
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
        """Of the bytes in the log."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write to the log; the notebook hears of it soon."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._log.append(encoded(text))
        return len(text)

    def flush(self) -> None:
        """Do nothing: what is written is in the log, and the notebook gets it a moment later."""

    def writable(self) -> bool:
        """Be a stream for writing."""
        return True

    def isatty(self) -> bool:
        """Be no terminal: nobody moves a cursor here."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that leads to the same log, for subprocesses and C code."""
        return self._descriptor


class OutputCapture:
    """The rank's two streams and their cells. ``_pump`` and what it calls run on the I/O thread."""

    def __init__(self, rank: int, size: int, logs: Path, io_thread: Any, publish: Publish) -> None:
        limit = int(lookup.value("HVD_LOG_MAX_MB", os.environ)) << 20
        self._pid = os.getpid()
        self._thread = io_thread
        self._publish = publish
        self._room = self._given = Room.for_ranks(size)  # of a cell, and of what runs
        self._index = Index(logs, rank)
        self._logs = {name: LogFile(logs, rank, name, self._index, limit) for name in rank_log.STREAMS}
        self._ways: dict[str, Forward] = {}  # empty between cells
        self._parent: dict[str, Any] = {}
        self._begun = ("", -1)  # kernel and number of the cell of the index's last row
        self._due: Callable[[], None] | None = None  # what displays have waiting for the next tick
        self.streams = tuple(RankStream(name, log) for name, log in self._logs.items())

    def take_over(self) -> None:
        """Become sys.stdout and sys.stderr, and what descriptors 1 and 2 lead to.

        And have what this thread and the I/O thread publish by, while a cell has not used up the file descriptors.
        """
        _flush_c()
        for descriptor, log in enumerate(self._logs.values(), start=1):
            log.capture(descriptor)
        sys.stdout, sys.stderr = self.streams
        self._thread.schedule(lambda: self._thread.schedule(_nothing))

    @contextmanager
    def during(self, parent: dict[str, Any], cell: int, kernel: str = "", room: Room | None = None) -> Iterator[None]:
        """Send what is printed until the block ends to those who wait for ``parent``'s answer.

        kernel: which counts the cells. What one cell of it runs in several parts is one piece of the log.
        room: how much is sent; by default what a notebook has for a rank.
        """
        missing = self._missing()
        if self._begun != (kernel, cell):
            self._begun = kernel, cell
            self._index.add(cell=cell, **{name: log.size for name, log in self._logs.items()})
        self._on_thread(lambda: self._begin(parent, room or self._room))
        try:
            yield
        finally:
            _flush_c()
            self._on_thread(lambda: self._end(missing))

    def flush(self) -> None:
        """Send what is new now, before something else that the notebook must see after it."""
        if os.getpid() == self._pid and self._ways:
            self._on_thread(self._pump)

    def at_tick(self, act: Callable[[], None]) -> None:
        """Call a function once, the next time that text is sent."""
        self._due = act

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send something else to those who wait for the cell's answer."""
        self._publish(kind, content, self._parent)

    def display_error(self, text: str) -> None:
        """Write a traceback to this rank's stderr, whatever the user's code has put in its place."""
        self._logs["stderr"].append(encoded(f"{text}\n"))

    def log(self, text: str) -> None:
        """Write to the log of stderr alone; between cells, for while one runs the notebook gets what is there."""
        self._logs["stderr"].append(encoded(text))

    def restart(self) -> None:
        """Forget what the cell has printed so far: the notebook clears its output."""
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
        self._parent, self._given = parent, room
        for log in self._logs.values():
            log.take_unlogged()  # of the time between cells
        self._from_here()
        self._tick(parent)

    def _from_here(self) -> None:
        if self._parent:
            self._ways = {name: Forward(log.read, log.size, self._given) for name, log in self._logs.items()}

    def _tick(self, parent: dict[str, Any]) -> None:
        if self._parent is parent:
            self._pump()
            self._thread.io_loop.call_later(_TICK_S, self._tick, parent)

    def _pump(self) -> None:
        for name, way in self._ways.items():
            for at, data in self._logs[name].take_unlogged():
                self._send(name, way.pump(at))
                self._send(name, iter([{"text": data.decode(errors="replace")}]))
            self._send(name, way.pump(self._logs[name].size))
            self._logs[name].shrink()
        due, self._due = self._due, None
        if due is not None:
            due()

    def _end(self, missing_before: int) -> None:
        self._pump()
        for name, way in self._ways.items():
            self._send(name, way.finish(self._logs[name].size))
        if lost := self._missing() - missing_before:
            why = next(log.why for log in self._logs.values() if log.missing)
            text = f"{lost:,} bytes of this cell are not in this rank's log: {why}\n"
            self._send("stderr", iter([{"text": text}]))
        self._ways, self._parent = {}, {}

    def _send(self, name: str, pieces: Iterator[dict[str, Any]]) -> None:
        for piece in pieces:
            if piece["text"] or "skipped" in piece:
                self._publish("stream", {"name": name, **piece}, self._parent)

    def _missing(self) -> int:
        return sum(log.missing for log in self._logs.values())


def encoded(text: str) -> bytes:
    """Return UTF-8; halves of characters that Python strings may hold become U+FFFD, matching ones are joined."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _nothing() -> None:
    pass


def _flush_c() -> None:
    """Write what the C library and Python's own first streams hold back."""
    for name in _C_FILES:
        _libc.fflush(ctypes.c_void_p.in_dll(_libc, name))
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # None, closed, or a full disk
            stream.flush()  # type: ignore[union-attr]
