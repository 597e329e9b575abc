"""SIGINT to the main thread until its handler runs: one interrupt, however many signals that takes.

A signal just before the main thread enters a sleep would not end the sleep, so more follow. A signal that is pending
when an earlier one is handled belongs to the same interrupt: raised again, it would break into the user's ``except``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RepeatedSignal:
    """One interrupt. A separate thread calls ``insist``, the signal handler ``notice``."""

    def __init__(self) -> None:
        self._noticed = threading.Event()
        self._sent = 0
        self._received = 0

    def insist(self, is_needed: Callable[[], bool]) -> bool:
        """Signal until the main thread has noticed, or the interrupt is obsolete; return False if neither happens."""
        main = threading.main_thread().ident
        assert main is not None
        for pause in _PAUSES_S:
            if not is_needed():
                return True
            self._sent += 1  # before the signal, whose handler reads it
            signal.pthread_kill(main, signal.SIGINT)  # that thread, so that its sleep or poll ends
            if self._noticed.wait(pause):
                return True
        return not is_needed()

    def notice(self) -> bool:
        """Count a signal; return whether it may raise: it is the first one, or more arrived than were sent here."""
        first = not self._noticed.is_set()
        self._noticed.set()
        self._received += 1
        return first or self._received > self._sent
