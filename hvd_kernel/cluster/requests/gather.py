"""Requests to several ranks and the wait for their answers (everything but cells).

Terms.
  channel    shell (requests in order, cells among them), control (at once, also while a cell runs), iopub (what ranks
             publish); each is a connection of its own, and ZeroMQ drops what is sent before both ends have met
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

    def __init__(self, ranks: Iterable[int], what: str) -> None:
        self._what = what
        self._missing = set(ranks)
        self._answers: dict[int, tuple[Mapping[str, Any], list[Any]]] = {}
        self._changed = threading.Condition()

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Keep the answer."""
        with self._changed:
            self._answers[rank] = content, buffers
            self._missing.discard(rank)
            self._changed.notify_all()
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore what the rank publishes meanwhile."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Keep the death as the answer."""
        self.on_reply(rank, {"error": failure.evalue}, [])

    def so_far(self) -> dict[int, Mapping[str, Any]]:
        """Return the contents that have come by now, errors among them."""
        with self._changed:
            return {rank: content for rank, (content, _) in sorted(self._answers.items())}

    def settle(self, timeout: float) -> dict[int, Mapping[str, Any]]:
        """Return the contents that have come when all have, or when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing, timeout)
        return self.so_far()

    def wait(self, timeout: float) -> dict[int, tuple[Mapping[str, Any], list[Any]]]:
        """Return all answers; interruptible.

        Raises
        ------
        ClusterError
            With the error of the first rank that has one, or naming the ranks that did not answer and others' errors.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._missing:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ClusterError(failure.unanswered(self._what, self._missing, timeout, self.so_far()))
                self._changed.wait(left)
        for rank, (content, _) in sorted(self._answers.items()):
            if "error" in content:
                raise ClusterError(f"{self._what}: rank {rank}: {content['error']}")
        return dict(sorted(self._answers.items()))


class Report:
    """A sink that hands each rank's answer on, on the I/O thread."""

    def __init__(self, report: Callable[[int, Mapping[str, Any]], None]) -> None:
        self._report = report

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Hand on the answer."""
        self._report(rank, content)
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore what the rank publishes meanwhile."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Hand on the death as the answer."""
        self._report(rank, {"error": failure.evalue})


class Handshake:
    """A sink that learns on which channels each rank can be reached: replies, and the "idle" that it publishes.

    channels: those of requests; on shell a rank does not answer while it runs a cell. Everything on the I/O thread.
    """

    def __init__(
        self, ranks: Iterable[int], channels: Sequence[str], report: Callable[[int, Mapping[str, Any]], None]
    ) -> None:
        self._channels = channels
        self._report = report  # a rank that is met on all of them, and who it says it is
        self._missing = {rank: {*channels, "iopub"} for rank in ranks}
        self._introduced: dict[int, Mapping[str, Any]] = {}

    def greet(self, request: Callable[..., None]) -> None:
        """Say hello, by ``Stream.request``, wherever a rank has not been met."""
        for channel in self._channels:
            unmet = sorted(rank for rank, missing in self._missing.items() if missing & {channel, "iopub"})
            hello = {"handler": "hello", "channel": channel}
            request(unmet, "hvd_request", hello, self, urgent=channel == "control")

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Note a channel that answers, and who the rank says it is; one that cannot say it is met with its error."""
        if "error" in content:
            self._report(rank, content)
            return False
        self._introduced[rank] = content
        self._answered(rank, content["channel"])
        return False

    def on_output(self, rank: int, kind: str, _content: Mapping[str, Any]) -> bool:
        """Note that the rank's publications arrive."""
        if kind == "status":
            self._answered(rank, "iopub")
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Leave it missing: whoever waits hears of the death itself."""

    def _answered(self, rank: int, channel: str) -> None:
        missing = self._missing[rank]
        if missing:
            missing.discard(channel)
            if not missing:
                self._report(rank, self._introduced[rank])
