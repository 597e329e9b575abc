"""One cell on some ranks, as a stream of events that ends with RankDone for each of them.

Threads: the I/O thread feeds events (``on_*``); any thread may read them (``next``). A rank is done when both its reply
and its last sample have arrived: output uses another channel than the reply, and that sample is the last output.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.messages import (
    ELASTIC_TYPE,
    LEFT_OUT_TYPE,
    METRICS_TYPE,
    PROMPT_TYPE,
    RAISED_TYPE,
    UNDONE_TYPE,
    WAITING_TYPE,
    Cleared,
    Event,
    Failure,
    InElastic,
    LeftOut,
    MetricsSample,
    Prompt,
    RankDone,
    RankJoined,
    RankLeft,
    RankLost,
    RankRaised,
    RichOutput,
    StepsUndone,
    TextDelta,
    Waiting,
    from_content,
)

_KERNEL = uuid.uuid4().hex
"""Identifies this kernel, because another kernel that attaches to the ranks numbers its cells from 1 again."""

_LIVE_ONLY = "application/vnd.jupyter.widget-view+json"  # the model is in the rank: no front end could show the view


def _text(rank: int, content: Mapping[str, Any]) -> TextDelta:
    rest, lines, beginning = content.get("skipped", (0, 0, 0))
    return TextDelta(rank, content["name"], content["text"], content.get("live", False), (rest, lines, beginning))


def _rich(rank: int, content: Mapping[str, Any], *, result: bool = False, update: bool = False) -> RichOutput:
    data = {mime: body for mime, body in content["data"].items() if mime != _LIVE_ONLY}
    display_id = content.get("transient", {}).get("display_id", "")
    return RichOutput(rank, data, dict(content["metadata"]), result, display_id, update)


_OUTPUTS: dict[str, Callable[[int, Mapping[str, Any]], Event]] = {
    "stream": _text,
    "display_data": _rich,
    "update_display_data": partial(_rich, update=True),
    "execute_result": partial(_rich, result=True),
    "clear_output": lambda rank, content: Cleared(rank, bool(content["wait"])),
    PROMPT_TYPE: lambda _rank, content: from_content(Prompt, content),
    LEFT_OUT_TYPE: lambda rank, content: LeftOut(rank, content["displays"]),
    ELASTIC_TYPE: lambda rank, _content: InElastic(rank),
    UNDONE_TYPE: lambda rank, content: StepsUndone(rank, content["steps"]),
    RAISED_TYPE: lambda rank, content: RankRaised(rank, content["ename"], content["evalue"]),
}


class CellExecution:
    """The requests of one cell to its ranks, and their answers as events. Made by ``Session.run``."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        cell: int,
        fetch: Callable[[bool], dict[int, Any]],
        *,
        replaces: bool = False,
        independent: bool = False,
    ) -> None:
        """Create the execution.

        Parameters
        ----------
        ranks, cell
            The ranks that run the cell, and its number.
        fetch
            Fetches the last values of the ranks; the argument is ``force``.
        replaces
            True if ranks that die may be replaced while the cell runs; until then they are in ``lost``.
        independent
            True if each rank trains a model of its own.
        """
        self.ranks = ranks
        self.cell = cell
        self.begun = time.monotonic()
        self.failures: list[Failure] = []
        self.metrics: dict[int, MetricsSample] = {}
        self.aborted = False  # a rank's engine has been aborted: the communicator must be reset before the next cell
        self.replaces = replaces
        self._independent = independent
        self.lost: dict[int, Failure] = {}  # ranks that have died and may be replaced
        self.waiting: dict[int, Waiting] = {}  # ranks that wait in elastic.run
        self.leaving: set[int] = set()  # ranks that were asked to leave the cell
        self.resizing = False  # CellRejoin.resize is in progress, and replaces ranks that die
        self.holding = set[int]()  # ranks that ended the cell with an error without releasing the waiting ranks
        self._fetch = fetch
        self._code = ""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._replies: dict[int, Failure | None] = {}
        self._idle: set[int] = set()
        self._open = set(ranks)  # ranks whose RankDone the reader has not seen
        self._ended: set[int] = set()  # ranks whose RankDone has been queued
        self._changed = threading.Condition()  # of waiting, lost and ranks
        self.over: Future[None] = Future()  # done when every rank has ended the cell
        if not ranks:
            self.over.set_result(None)

    def request(self, code: str, run: int) -> dict[str, Any]:
        """Return the content of the execute request; ``run`` is the run's number in this cluster."""
        self._code = code
        ours: dict[str, Any] = {
            "cell": self.cell,
            "run": run,
            "kernel": _KERNEL,
            "elastic": {"replaces": self.replaces, "run": run},
        }
        ours |= {"independent": True} if self._independent else {}
        options = {"silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
        return {"code": code, **options, "hvd": ours}

    @property
    def file(self) -> str:
        """The file name that IPython assigns to the code; "" for a run that another kernel has begun."""
        from ipykernel.compiler import get_file_name  # noqa: PLC0415 - only for a rank that does not answer

        return Path(get_file_name(self._code)).name if self._code else ""  # type: ignore[no-untyped-call]

    def request_again(self, run: int, root: int, fresh: tuple[int, ...]) -> dict[str, Any]:
        """Return the content of the execute request for a fresh rank; all ranks sync from ``root``."""
        content = self.request(self._code, run)
        content["hvd"]["elastic"] |= {"joins": True, "root": root, "fresh": fresh}
        return content

    @property
    def busy(self) -> set[int]:
        """The living ranks that have not ended the cell."""
        return set(self.ranks) - self._ended - self.lost.keys()

    @property
    def all_wait(self) -> bool:
        """True if there are busy ranks and all of them wait in ``elastic.run``."""
        return bool(self.busy) and self.busy <= self.waiting.keys()

    def wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait for a condition on the waiting ranks and the ranks of the cell; return whether it holds."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def check_all_in(self) -> None:
        """Check that no rank has ended the cell, because it could not re-enter it.

        Raises
        ------
        ClusterError
            If a rank has.
        """
        if self._ended:
            has, does = ("has", "does") if len(self._ended) == 1 else ("have", "do")
            raise ClusterError(f"{rank_list(self._ended)} {has} ended the cell, and {does} not come back to it")

    def dismiss(self, ranks: set[int]) -> None:
        """Mark ranks as leaving: an error with which they end is no failure of the cell. I/O thread."""
        self.leaving |= ranks
        for rank in ranks & self.lost.keys():
            del self.lost[rank]
            self._leave(rank)

    def admit(self, ranks: set[int]) -> None:
        """Add ranks to the cell, new ones or replacements of lost ones. I/O thread."""
        for rank in sorted(ranks):
            self.lost.pop(rank, None)
            self._replies.pop(rank, None)
            self._idle.discard(rank)
            self._ended.discard(rank)
            self._events.put(RankJoined(rank))
        self.ranks = tuple(sorted({*self.ranks, *ranks}))

    def give_up(self) -> None:
        """Treat lost ranks as dead: they will not be replaced in this cell. I/O thread."""
        self.replaces = False
        self.waiting.clear()
        for rank, failure in list(self.lost.items()):
            self.on_dead(rank, failure)
        self.lost.clear()

    @property
    def done(self) -> bool:
        """True once ``next`` has returned RankDone of every rank."""
        return not self._open

    @property
    def finished(self) -> bool:
        """True once every rank has ended the cell, whether or not the events have been read."""
        return len(self._ended) == len(self.ranks)

    def wait(self, timeout: float) -> bool:
        """Wait until the run is finished; return whether it is, within the timeout."""
        return bool(wait_for([self.over], timeout).done)

    def next(self, timeout: float) -> Event | None:
        """Return the next event in order of arrival, or None if none arrives within ``timeout`` seconds."""
        if self.done:
            return None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, RankJoined):
            self._open.add(event.rank)
        elif isinstance(event, RankDone | RankLeft):
            self._open.discard(event.rank)
        if isinstance(event, RankDone) and event.failure is not None:
            self.failures.append(event.failure)
        return event

    def values(self, *, force: bool = False) -> dict[int, Any]:
        """Fetch each rank's last-expression value, with ``force`` of any size; valid until the next run.

        Raises
        ------
        ClusterError
            If the cell still runs, or a value cannot be pickled.
        """
        return self._fetch(force)

    # From here on, for the I/O thread only.

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Record the rank's reply that it has ended the cell; return True if its output is complete too."""
        ours = content.get("hvd", {})
        wire = ours.get("failure")
        self.aborted |= bool(ours.get("aborted"))
        if ours.get("holds"):
            self.holding.add(rank)
        self._replies[rank] = from_content(Failure, wire) if wire else None
        return self._maybe_end(rank)

    def on_output(self, rank: int, kind: str, content: Mapping[str, Any]) -> bool:
        """Turn one iopub message into events; return True if the rank is done."""
        read = _OUTPUTS.get(kind)
        if kind == WAITING_TYPE:
            self.waiting[rank] = waiting = from_content(Waiting, content)
            self._events.put(waiting)
            self._notify()
        elif read is not None:
            self._events.put(read(rank, content))
        elif kind == METRICS_TYPE:
            sample = from_content(MetricsSample, content)
            self.metrics[rank] = sample
            self._events.put(sample)
            if sample.state == "idle":
                self._idle.add(rank)
                return self._maybe_end(rank)
        return False

    def on_silence(self, rank: int) -> bool:
        """Record that the rank's output is complete; return True if its reply has arrived too."""
        self._idle.add(rank)
        return self._maybe_end(rank)

    def on_dead(self, rank: int, failure: Failure) -> None:
        """End the rank without its reply, unless it may be replaced."""
        if rank not in self.ranks:  # it has left
            return
        self.aborted = True
        self.waiting.pop(rank, None)
        if self.replaces and rank not in self._ended | self.leaving:
            self.lost[rank] = failure
            self._events.put(RankLost(rank, failure))
            self._notify()
            return
        self._replies[rank] = failure
        self._idle.add(rank)
        self._maybe_end(rank)

    def _maybe_end(self, rank: int) -> bool:
        if rank in self._ended or rank not in self.ranks:
            return True
        if rank not in self._replies or rank not in self._idle:
            return False
        if rank in self.leaving:
            self._leave(rank)
            return True
        self._ended.add(rank)
        self._events.put(RankDone(rank, self._replies[rank]))
        if self.finished:
            self.over.set_result(None)
        self._notify()
        return True

    def _leave(self, rank: int) -> None:
        self.ranks = tuple(other for other in self.ranks if other != rank)
        self.leaving.discard(rank)
        self.waiting.pop(rank, None)
        self._events.put(RankLeft(rank))
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
