"""One cell on some ranks, as a stream of events that ends with RankDone for each of them.

Threads: the hub's I/O thread feeds (``on_*``); any thread may read (``next``). A rank is done when both its reply and
its last sample have come, because output travels on another channel than the reply, and that sample is its last.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any

from hvd_kernel.protocol import (
    METRICS_TYPE,
    Event,
    Failure,
    MetricsSample,
    RankDone,
    RichOutput,
    TextDelta,
    from_wire,
)

_LIVE_ONLY = "application/vnd.jupyter.widget-view+json"  # its model lives in the rank: no front end could show it


class Run:
    """The events of one cell. Made by ``Session.run``."""

    def __init__(self, ranks: tuple[int, ...], cell: int, fetch: Callable[[], dict[int, Any]]) -> None:
        self.ranks = ranks
        self.cell = cell
        self.failures: list[Failure] = []
        self.metrics: dict[int, MetricsSample] = {}
        self.aborted = False  # a rank's engine has been aborted: the session must heal before the next cell
        self._fetch = fetch
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._replies: dict[int, Failure | None] = {}
        self._idle: set[int] = set()
        self._open = set(ranks)  # ranks whose RankDone the reader has not seen
        self._ended: set[int] = set()  # ranks whose RankDone has been queued

    @property
    def done(self) -> bool:
        """True once ``next`` has returned RankDone of every rank."""
        return not self._open

    @property
    def finished(self) -> bool:
        """True once every rank has ended the cell, whether or not the events have been read."""
        return len(self._ended) == len(self.ranks)

    def next(self, timeout: float) -> Event | None:
        """Return the next event in order of arrival, or None when none comes within ``timeout`` seconds."""
        if self.done:
            return None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, RankDone):
            self._open.discard(event.rank)
            if event.failure is not None:
                self.failures.append(event.failure)
        return event

    def values(self) -> dict[int, Any]:
        """Fetch each rank's last-expression value; valid until the next run.

        Raises
        ------
        ClusterError
            If the cell still runs, or a value cannot be pickled.
        """
        return self._fetch()

    # What follows is called by the hub's I/O thread only.

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Note the rank's own word that the cell has ended; True when nothing more can come."""
        ours = content.get("hvd", {})
        wire = ours.get("failure")
        self.aborted |= bool(ours.get("aborted"))
        self._replies[rank] = from_wire(Failure, wire) if wire else None
        return self._maybe_end(rank)

    def on_output(self, rank: int, kind: str, content: Mapping[str, Any]) -> bool:
        """Turn one iopub message into events; True when nothing more can come."""
        if kind == "stream":
            self._events.put(TextDelta(rank, content["name"], content["text"]))
        elif kind in {"display_data", "execute_result"}:
            data = {mime: body for mime, body in content["data"].items() if mime != _LIVE_ONLY}
            self._events.put(RichOutput(rank, data, dict(content["metadata"]), kind == "execute_result"))
        elif kind == METRICS_TYPE:
            sample = from_wire(MetricsSample, dict(content))
            self.metrics[rank] = sample
            self._events.put(sample)
            if sample.state == "idle":
                self._idle.add(rank)
                return self._maybe_end(rank)
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """End the rank without its reply."""
        self.aborted = True
        self._replies[rank] = failure
        self._idle.add(rank)
        self._maybe_end(rank)

    def _maybe_end(self, rank: int) -> bool:
        if rank in self._ended:
            return True
        if rank in self._replies and rank in self._idle:
            self._ended.add(rank)
            self._events.put(RankDone(rank, self._replies[rank]))
        return rank in self._ended
