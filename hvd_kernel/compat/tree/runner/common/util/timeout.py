"""``horovod.runner.common.util.timeout``: a deadline."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """A deadline has passed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Timeout:
    """So many seconds from now; ``message`` has a place for {activity}."""

    def __init__(self, timeout: float, message: str) -> None:
        self._seconds = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Return the seconds that are left, 0 at least."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Tell whether it has passed."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException where it has passed."""
        if self.timed_out():
            said = self._message.format(activity=activity).rstrip(". ")
            raise TimeoutException(f"{said}. Timeout after {self._seconds} seconds.")
