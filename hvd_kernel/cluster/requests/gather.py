"""Sinks for the answers of several ranks to a request, except cells.

Terms.
  sink       receives the replies and publications that belong to one request (stream.py)
  channel    shell (requests in order, cells among them), control (immediate, also while a cell runs), iopub (the ranks'
             publications); each is a separate connection, and ZeroMQ drops messages sent before it is established
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hvd_kernel.cluster import failure
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import Failure


class Gather:
    """A sink that keeps one answer per rank. ``wait`` is for any thread, ``on_*`` for the I/O thread."""

    def __init__(self, ranks: Iterable[int], request: str) -> None:
        self._request = request
        self._missing = set(ranks)
        self._answers: dict[int, tuple[Mapping[str, Any], list[Any]]] = {}
        self._changed = threading.Condition()

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Store the answer."""
        with self._changed:
            self._answers[rank] = content, buffers
            self._missing.discard(rank)
            self._changed.notify_all()
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore the rank's publications."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Store the death as the answer."""
        self.on_reply(rank, {"error": failure.evalue}, [])

    def so_far(self) -> dict[int, Mapping[str, Any]]:
        """Return the answers that have arrived, errors included."""
        with self._changed:
            return {rank: content for rank, (content, _) in sorted(self._answers.items())}

    def wait_all(self, timeout: float) -> dict[int, Mapping[str, Any]]:
        """Wait until all answers have arrived, or until the timeout, and return those that have."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing, timeout)
        return self.so_far()

    def wait(self, timeout: float) -> dict[int, tuple[Mapping[str, Any], list[Any]]]:
        """Wait for all answers and return them; interruptible.

        Raises
        ------
        ClusterError
            With the error of the first rank that has one; or, after the timeout, naming the ranks that did not answer
            and the errors of all others.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._missing:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ClusterError(failure.unanswered(self._request, self._missing, timeout, self.so_far()))
                self._changed.wait(left)
        for rank, (content, _) in sorted(self._answers.items()):
            if "error" in content:
                raise ClusterError(f"{self._request}: rank {rank}: {content['error']}")
        return dict(sorted(self._answers.items()))


class Report:
    """A sink that reports each rank's answer on the I/O thread."""

    def __init__(self, report: Callable[[int, Mapping[str, Any]], None]) -> None:
        self._report = report

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Report the answer."""
        self._report(rank, content)
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore the rank's publications."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Report the death as the answer."""
        self._report(rank, {"error": failure.evalue})


class Handshake:
    """A sink that records which channels to each rank are established, from replies and the published "idle".

    ``channels`` are those of requests; on shell a rank does not answer while it runs a cell. For the I/O thread only.
    """

    def __init__(
        self, ranks: Iterable[int], channels: Sequence[str], report: Callable[[int, Mapping[str, Any]], None]
    ) -> None:
        self._channels = channels
        self._report = report  # called with a rank and its hello once all channels are established
        self._missing = {rank: {*channels, "iopub"} for rank in ranks}
        self._hellos: dict[int, Mapping[str, Any]] = {}

    def greet(self, request: Callable[..., None]) -> None:
        """Send a hello, by ``Stream.request``, to every rank and channel that is not established."""
        for channel in self._channels:
            unmet = sorted(rank for rank, missing in self._missing.items() if missing & {channel, "iopub"})
            hello = {"handler": "hello", "channel": channel}
            request(unmet, "hvd_request", hello, self, urgent=channel == "control")

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Record a channel that answers and the rank's hello; report an error instead of a hello at once."""
        if "error" in content:
            self._report(rank, content)
            return False
        self._hellos[rank] = content
        self._established(rank, content["channel"])
        return False

    def on_output(self, rank: int, kind: str, _content: Mapping[str, Any]) -> bool:
        """Record that the rank's publications arrive."""
        if kind == "status":
            self._established(rank, "iopub")
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Leave the rank missing: the caller receives the death from elsewhere."""

    def _established(self, rank: int, channel: str) -> None:
        missing = self._missing[rank]
        if missing:
            missing.discard(channel)
            if not missing:
                self._report(rank, self._hellos[rank])
