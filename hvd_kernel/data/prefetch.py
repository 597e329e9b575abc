"""Prefetch: items of an iterable that a thread reads before they are taken.

Terms.
  reader  the thread; it runs the iterable from its first line to its last, ``finally`` included
  room    how many items may wait; the reader waits when there are so many
  stop    nobody takes any more: the reader ends with the item that it is at, and nobody waits for that

What ends the reading, its end or an exception, comes after the items that were read before it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

_AT_EXIT_S = 1.0  # a source that says nothing keeps no program from ending
_running: weakref.WeakSet[Prefetch] = weakref.WeakSet()


class Prefetch:
    """One reading of an iterable. ``after``: readings that were stopped, and must have ended before this one begins."""

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

    def take(self) -> Generator[Any, None, None]:
        """Give the items in order; an exception of the reader's is raised here."""
        try:
            while item := self._next():
                yield item[0]
        finally:
            self.stop()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the reading, and the waiting of whoever takes. What an ended reader has read may still be taken."""
        if not self.alive:
            return
        with self._changed:
            self.stopped = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the reader has ended."""
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether the reader still runs. In a forked child it does not, and nobody may touch its lock."""
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
            for each in after:
                each.join()
            self._read_all(iter(read()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for whoever takes
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
    """Let no reader run into an interpreter that is going away."""
    for one in list(_running):
        one.stop()
        one.join(_AT_EXIT_S)
