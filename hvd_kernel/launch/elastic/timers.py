"""Timers of the elastic driver, by what they are for; one that was set anew or cancelled is not heard of again."""

from __future__ import annotations

from enum import Enum, auto

from hvd_kernel.processes.event_loop import SetTimer


class For(Enum):
    """What a timer is for."""

    SLOTS = auto()  # the wait for enough slots
    LAST_CALL = auto()  # the time in which changes of the hosts become one
    COOLDOWN = auto()  # a slot or host is used again
    RELEASE = auto()  # members who have not noticed a failure are told of it
    RESET = auto()  # those that a reset waits for have failed
    START = auto()  # one worker has not come to init
    LEAVE = auto()  # one worker has not ended


Key = tuple[For, int]  # what for, and for which worker


class Timers:
    """Those that run."""

    def __init__(self) -> None:
        self._tickets: dict[Key, int] = {}
        self._last = 0

    def set(self, what: For, seconds: float, worker: int = -1) -> SetTimer[int]:
        """Start one, in the place of an earlier one for the same."""
        self._last += 1
        self._tickets[what, worker] = self._last
        return SetTimer(self._last, seconds)

    def runs(self, what: For, worker: int = -1) -> bool:
        """Whether there is one."""
        return (what, worker) in self._tickets

    def knows(self, ticket: int) -> bool:
        """Whether a ticket is that of one of them."""
        return ticket in self._tickets.values()

    def cancel(self, *which: For, worker: int = -1) -> None:
        """Forget them."""
        for what in which:
            self._tickets.pop((what, worker), None)

    def fired(self, ticket: int) -> Key:
        """Return what a timer was for whose time is over."""
        key = next(key for key, current in self._tickets.items() if current == ticket)
        del self._tickets[key]
        return key
