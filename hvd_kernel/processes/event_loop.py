"""Event loop: runs callbacks when a descriptor is ready, when a timer is due, or at the request of another thread.

The method names are asyncio's. asyncio itself would cost every agent of every rank 40 ms of imports, and would log a
callback's error, at which an agent must exit.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec import Struct

_LONGEST_S = 86_400.0  # of one wait: poll takes no more than 24 days

Callback = Callable[[], object]
T = TypeVar("T")


class SetTimer(Struct, Generic[T], frozen=True):
    """Action of a state machine: deliver ``TimerFired(ticket)`` after ``seconds``."""

    ticket: T
    seconds: float


class TimerFired(Struct, Generic[T], frozen=True):
    """Event for a state machine: a timer is due."""

    ticket: T


class Timer:
    """A scheduled call."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class EventLoop:
    """Runs callbacks in one thread. Its methods are for that thread, unless documented for any thread."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # not epoll, which rejects files: stdin may be one
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._posted: deque[Callback] = deque()  # by other threads
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._runs = True
        self.add_reader(self._wake, self._call_posted)

    def run(self) -> None:
        """Run callbacks until ``stop``."""
        while self._runs:
            self.turn()

    def stop(self) -> None:
        """Make ``run`` return after this callback."""
        self._runs = False

    def close(self) -> None:
        """Close its own descriptors. Idempotent."""
        if self._selector.get_map() is not None:
            self._selector.close()
            os.close(self._wake)

    def turn(self) -> None:
        """Wait until a descriptor is ready or a timer is due, and run all callbacks that are."""
        for key, mask in self._selector.select(self._patience()):
            for event, callback in key.data.items():
                if mask & event and self._runs and self._is_current(key):
                    callback()
        while self._runs and self._timers and self._timers[0][0] <= time.monotonic():
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def call_soon_threadsafe(self, callback: Callback) -> None:
        """Run a callback as soon as possible. Any thread, and signal handlers."""
        self._posted.append(callback)
        os.eventfd_write(self._wake, 1)

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Run a callback after ``seconds``."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def add_reader(self, descriptor: int, callback: Callback) -> None:
        """Run a callback whenever a descriptor is readable, or a pidfd's process has exited."""
        self._set(descriptor, selectors.EVENT_READ, callback)

    def remove_reader(self, descriptor: int) -> None:
        """Undo ``add_reader``, if it was called; always before the descriptor is closed."""
        self._set(descriptor, selectors.EVENT_READ, None)

    def add_writer(self, descriptor: int, callback: Callback) -> None:
        """Run a callback whenever a descriptor is writable."""
        self._set(descriptor, selectors.EVENT_WRITE, callback)

    def remove_writer(self, descriptor: int) -> None:
        """Undo ``add_writer``, if it was called; always before the descriptor is closed."""
        self._set(descriptor, selectors.EVENT_WRITE, None)

    def _set(self, descriptor: int, event: int, callback: Callback | None) -> None:
        key = self._selector.get_map().get(descriptor)
        callbacks = {} if key is None else {**key.data}
        callbacks.pop(event, None)
        if callback is not None:
            callbacks[event] = callback
        if key is not None:
            self._selector.unregister(descriptor)
        if callbacks:
            self._selector.register(descriptor, sum(callbacks), callbacks)

    def _is_current(self, key: selectors.SelectorKey) -> bool:
        """Return whether a key is still registered: a callback may have closed its descriptor and reused the number."""
        return self._selector.get_map().get(key.fd) is key

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_S) if self._timers else None

    def _call_posted(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()
