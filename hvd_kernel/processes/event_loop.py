"""Event loop: calls back when a descriptor is ready, a time has come, or another thread asks for it.

The verbs are asyncio's. asyncio itself costs every agent of every rank 40 ms of imports, and logs a callback's error
where an agent has to end.
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
    """What a state machine wants of whoever carries its actions out: answer ``TimerFired`` in a while."""

    ticket: T  # the timer's number, by which its end is known
    seconds: float


class TimerFired(Struct, Generic[T], frozen=True):
    """What it is told then: a timer's time is over."""

    ticket: T


class Timer:
    """A call that is due at a time."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do not call it."""
        self.callback = None


class EventLoop:
    """Runs callbacks in one thread. Its methods are for that thread, unless they say any thread."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # not epoll: a file may stand where a pipe is expected
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._asked: deque[Callback] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._runs = True
        self.add_reader(self._wake, self._call_asked)

    def run(self) -> None:
        """Call back until ``stop``."""
        while self._runs:
            self.turn()

    def stop(self) -> None:
        """Have ``run`` return after this callback."""
        self._runs = False

    def close(self) -> None:
        """Give up its own descriptor. Idempotent."""
        if self._selector.get_map() is not None:
            self._selector.close()
            os.close(self._wake)

    def turn(self) -> None:
        """Wait until something is ready, and call back for all that is."""
        for key, mask in self._selector.select(self._patience()):
            for event, callback in key.data.items():
                if mask & event and self._runs and self._is_current(key):
                    callback()
        while self._runs and self._timers and self._timers[0][0] <= time.monotonic():
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def call_soon_threadsafe(self, callback: Callback) -> None:
        """Call back as soon as possible. Any thread, and signal handlers."""
        self._asked.append(callback)
        os.eventfd_write(self._wake, 1)

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Call back after a time."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def add_reader(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever there is something to read, or a pidfd's process has ended."""
        self._set(descriptor, selectors.EVENT_READ, callback)

    def remove_reader(self, descriptor: int) -> None:
        """Undo ``add_reader``, if it was called; always before the descriptor is closed."""
        self._set(descriptor, selectors.EVENT_READ, None)

    def add_writer(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever something can be written."""
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
        """Whether it is what select meant: a callback may have closed it, and opened another one of that number."""
        return self._selector.get_map().get(key.fd) is key

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_S) if self._timers else None

    def _call_asked(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._asked:
            self._asked.popleft()()
