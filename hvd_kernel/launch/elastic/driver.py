"""Elastic driver as a pure state machine: events in, actions out. No clock, no thread, no process, no file.

``step`` takes one event and returns what is to be done for it; whoever does that brings back what came of it as events.
"""

from __future__ import annotations

from hvd_kernel.launch.elastic.events import Action, End, Event, StopRequested
from hvd_kernel.launch.elastic.settings import Settings


class Driver:
    """Who is in the job, and how that changes. One thread at a time calls ``step``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.generation = 0
        """Of the workers that train; 0: none so far."""
        self.has_ended = False

    def step(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what is to be done, in this order. After an End nothing is.

        Parameters
        ----------
        event
            What has happened.
        now
            When, in seconds since the epoch.
        """
        del now
        if self.has_ended or not isinstance(event, StopRequested):
            return []
        self.has_ended = True
        return [End("failed", event.why)]
