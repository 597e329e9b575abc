"""Processor time of this process and of its main thread: whether they compute, or wait. Any thread may ask."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

BUSY = 0.2
"""Share of its time that the main thread runs, or waits for a processor, if it computes."""

SOONEST_S = 0.1
"""Shortest time between two checks; a call in between returns the result of the previous check."""

LONGEST_S = 2.0
"""Longest time between two checks that shows whether it is idle."""

_MOST_BYTES = 256  # of three numbers


class _Checks:
    """The latest check of the main thread's processor time."""

    def __init__(self, processor: Callable[[], int]) -> None:
        self._processor = processor  # nanoseconds
        self._lock = threading.Lock()
        self._at = time.monotonic()
        self._ran = 0
        self._is_idle = False

    def is_idle(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._at >= SOONEST_S:
                ran = self._processor()
                seconds = now - self._at
                self._is_idle = seconds <= LONGEST_S and ran - self._ran < BUSY * 1e9 * seconds
                self._at, self._ran = now, ran
            return self._is_idle


class ProcessChecks(_Checks):
    """The latest check of the processor time of all threads: a framework may compute while the main thread waits."""

    def __init__(self) -> None:
        super().__init__(time.process_time_ns)


def is_idle() -> bool:
    """Return whether the main thread neither computed nor waited for a processor between the two latest checks.

    A call sooner than ``SOONEST_S`` after a check returns its result, one later than ``LONGEST_S`` returns False.
    """
    return _checks.is_idle()


def processor_ns() -> int:
    """Return the processor time of the main thread in nanoseconds."""
    return time.clock_gettime_ns(time.pthread_getcpuclockid(threading.main_thread().ident or 0))


def _main_thread_ns() -> int:
    return processor_ns() + scheduled_ns()[1]


_checks = _Checks(_main_thread_ns)


def scheduled_ns() -> tuple[int, int]:
    """Return nanoseconds for which the main thread ran, and was ready but waited for a processor; 0 if unknown."""
    try:
        file = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY)  # a file object costs 30 us
        try:
            ran, queued, _ = map(int, os.read(file, _MOST_BYTES).split())
        finally:
            os.close(file)
    except (OSError, ValueError):  # a kernel without CONFIG_SCHED_INFO
        return 0, 0
    return ran, queued
