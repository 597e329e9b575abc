"""Prefetch: a thread reads items of an iterable before the consumer needs them.

Terms.
  reader    the thread; it runs all code of the iterable, including ``finally``
  consumer  the thread that iterates over ``items()``
  room      maximum number of items that are buffered; the reader waits when the buffer is full
  stop      the reader finishes the current item and exits, and the consumer does not wait for it

The consumer receives the items in order, and then the end of the iterable or its exception.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

_AT_EXIT_S = 1.0  # a blocked iterable does not keep the program from exiting
_running: weakref.WeakSet[Prefetch] = weakref.WeakSet()


class Prefetch:
    """Reads an iterable once, after the stopped readers of ``after`` have exited."""

    def __init__(self, read: Callable[[], Iterable[Any]], room: int, after: Sequence[Prefetch] = ()) -> None:
        self._items: deque[Any] = deque()
        self._room = room
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self.stopped = False
        self._reader = threading.Thread(target=self._read, args=(read, after), name="hvd-data", daemon=True)
        _running.add(self)
        self._reader.start()

    def items(self) -> Generator[Any, None, None]:
        """Yield the items in order; raise the exception of the reader, if there is one."""
        try:
            while item := self._next():
                yield item[0]
        finally:
            self.stop()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the reader and release a waiting consumer. No effect if the reader has exited: its items remain."""
        if not self.alive:
            return
        with self._changed:
            self.stopped = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the reader has exited."""
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    @property
    def alive(self) -> bool:
        """Return whether the reader runs. False in a forked child, where its lock must not be acquired."""
        return self._reader.is_alive()

    def _next(self) -> tuple[Any] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended or self.stopped)
            if not self._items:
                return None
            self._changed.notify_all()
            return (self._items.popleft(),)

    def _read(self, read: Callable[[], Iterable[Any]], after: Sequence[Prefetch]) -> None:
        try:
            for reading in after:
                reading.join()
            self._read_all(iter(read()))
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read_all(self, items: Iterator[Any]) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(getattr(items, "close", lambda: None))
            while self._wait_for_room():
                try:
                    item = next(items)
                except StopIteration:
                    return
                self._add(item)

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._room or self.stopped)
            return not self.stopped

    def _add(self, item: Any) -> None:
        with self._changed:
            if not self.stopped:
                self._items.append(item)
                self._changed.notify_all()


@atexit.register
def _end_all() -> None:
    """Stop all readers before the interpreter is finalized."""
    for reading in list(_running):
        reading.stop()
        reading.join(_AT_EXIT_S)
