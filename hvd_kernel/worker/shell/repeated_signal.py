"""SIGINT to the main thread until it has noticed: one interrupt, however many signals that takes.

A signal just before the main thread enters a sleep would not end the sleep, so more follow. One that is on its way when
an earlier one is noticed is still the same interrupt: raised again, it would break into the user's ``except``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RepeatedSignal:
    """One interrupt. ``insist`` is for a thread of its own, ``notice`` for the signal's handler."""

    def __init__(self) -> None:
        self._noticed = threading.Event()
        self._sent = 0
        self._came = 0

    def insist(self, wanted: Callable[[], bool]) -> bool:
        """Signal until the main thread has noticed, or nobody wants it any more; return False if neither came."""
        main = threading.main_thread().ident
        assert main is not None
        for pause in _PAUSES_S:
            if not wanted():
                return True
            self._sent += 1  # before the signal, whose handler looks at it
            signal.pthread_kill(main, signal.SIGINT)  # that thread, so that its sleep or poll ends
            if self._noticed.wait(pause):
                return True
        return not wanted()

    def notice(self) -> bool:
        """Note a signal; return whether it may raise: it is the first one, or more have come than were sent here."""
        first = not self._noticed.is_set()
        self._noticed.set()
        self._came += 1
        return first or self._came > self._sent
