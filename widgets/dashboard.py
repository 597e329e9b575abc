"""Dashboard widget of one cell: fed by any thread, shown live in a browser, else as a picture.

The widget model is created when the dashboard is first displayed, so that a run without a front end sends nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from hvd_kernel.diagnosis.limits_of_run import Possible
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes import bandwidth
from hvd_kernel.protocol.messages import READABLE, MetricsSample
from hvd_kernel.protocol.operations import Recent
from hvd_kernel.widgets.board import Board, Kind, Size, curves_of, summary
from hvd_kernel.widgets.picture import render
from hvd_kernel.widgets.series import FEW, LimitsWindow
from hvd_kernel.widgets.swimlanes.window import KEEP_S, MOST_STORED, Window, chosen

PERIOD_S = 0.25
"""Period of the queries to the ranks."""

REQUEST_S = 5.0
"""Lifetime of a page's request for the timeline; the page renews it in time."""


class LiveTimeline:
    """Timeline of one cell: queried while a page shows it, and once more at the end. Its owner holds a lock."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.window = Window(socket.gethostname(), round(1e6 * self.begin))
        self._until = 0.0
        self._queried = 0.0
        self._picked: int | None = None
        self._whole = False  # a page has no timeline yet

    def request(self, picked: int | None, *, whole: bool) -> None:
        """Record that a page shows the timeline."""
        self._until = time.monotonic() + REQUEST_S
        self._picked = picked
        self._whole |= whole

    @property
    def due(self) -> bool:
        """True if the ranks are to be queried now."""
        now = time.monotonic()
        return now < self._until and now - self._queried >= PERIOD_S

    def question(self, ranks: Sequence[int], slow: Iterable[int], *, over: bool) -> tuple[list[int], dict[str, Any]]:
        """Return the ranks to query, and the query; ``over``: the cell has ended."""
        self._queried = now = time.monotonic()
        seconds = min(KEEP_S, now - self.begin)  # older operations are of earlier cells
        queried = chosen(ranks, slow, self._picked)
        self.window.lanes = {rank: lane for rank, lane in self.window.lanes.items() if rank in queried}
        return queried, {"cursors": self.window.cursors(), "seconds": seconds, "over": over}

    def update(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Add the answers of ranks; one without operations is ignored."""
        recent = {rank: Recent.of(content) for rank, content in answers.items() if "operations" in content}
        self.window.update(recent, round(1e6 * time.monotonic()))

    def message(self) -> dict[str, Any]:
        """Return the changes for the pages, or the whole timeline for a new page."""
        if self._whole:
            self._whole = False
            self.window.news()
            return self.window.whole()
        return self.window.news()

    def stored(self) -> dict[str, Any] | None:
        """Return the last operations, which are stored with the cell; None if there are none."""
        if not any(lane.operations for lane in self.window.lanes.values()):
            return None
        return self.window.whole(MOST_STORED)


HERE = Path(__file__).parent
FLUSH_S = 0.1
"""Minimum time between two increments."""

MANY_FLUSH_S = 0.2
"""The same, for more than a few ranks."""

MOST_RANKS = 1 << 16
"""Largest number of ranks that a page may request."""

Bundle = tuple[dict[str, Any], dict[str, Any]]


def _source(*names: str) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def _possible(ranks: int) -> Possible:
    """Return the bandwidth that ``hvd.bench()`` measured here for this many ranks; it is read at the first use."""

    @cache
    def measured() -> bandwidth.Bandwidth | None:
        return bandwidth.kept(ranks)

    def possible(nbytes: float) -> float | None:
        result = measured()
        return None if result is None else result.bus(result.possible(nbytes))

    return possible


class Panel(anywidget.AnyWidget):
    """The widget model. Its one trait is the board's snapshot, created when it is serialized."""

    _esm = _source("static/dashboard.js")
    _css = _source("static/uPlot.min.css", "dashboard.css")
    snapshot = traitlets.Any().tag(
        sync=True,
        to_json=lambda _value, panel: panel.current(),
        from_json=lambda _value, _panel: None,  # the browser never sets it
    )

    def __init__(
        self,
        current: Callable[[], dict[str, Any]],
        resize: Callable[[int], None],
        request_timeline: Callable[[int | None, bool], None],
    ) -> None:
        self.current, self._resize, self._request_timeline = current, resize, request_timeline
        super().__init__()
        setattr(self.comm, READABLE, True)
        self.on_msg(self._answer)

    def _answer(self, _panel: object, content: object, _buffers: object) -> None:
        match content:
            case "snapshot":
                self.send_state("snapshot")
            case {"resize": int(n)} if not isinstance(n, bool) and 0 < n <= MOST_RANKS:
                self._resize(n)
            case {"timeline": int() | None as picked, "whole": bool(whole)} if not isinstance(picked, bool):
                self._request_timeline(picked, whole)


class Dashboard:
    """Live figures and output of ``ranks`` under ``title``.

    ``before`` has each rank's last sample of an earlier cell: with it, rates count from the start of this cell.
    ``cores`` is the number of cores that the ranks share, if all of them are on this host.
    ``feed`` and ``feed_text`` are cheap and may be called from any thread; ``flush`` sends the changes.
    """

    def __init__(
        self, ranks: Sequence[int], title: str, before: Mapping[int, MetricsSample] | None = None, cores: int = 0
    ) -> None:
        self._lock = threading.Lock()
        self._board = Board(ranks, title, time.monotonic, before, LimitsWindow(_possible(len(ranks)), cores))
        self._panel: Panel | None = None
        self._flushed = 0.0
        self.origin: Mapping[str, Any] = {}  # of the cell, for the metadata beside the figures
        self._live = LiveTimeline()
        self.on_resize: Callable[[int], None] = lambda _n: None  # called when a page requests n ranks, on any thread

    def feed(self, sample: MetricsSample) -> None:
        """Add a rank's sample."""
        with self._lock:
            self._board.feed(sample)

    def feed_text(self, rank: int, stream: str, text: str) -> None:
        """Add text that a rank printed."""
        with self._lock:
            self._board.log.feed(rank, stream, text)

    def mark(self, kind: Kind, label: str) -> None:
        """Mark the current time on the time axis."""
        with self._lock:
            self._board.mark(kind, label)

    def warn(self, text: str) -> None:
        """Show a warning about the run."""
        with self._lock:
            self._board.warn(text)

    def join(self, rank: int) -> None:
        """Add a rank that is new in the cell, or replaces an earlier one."""
        with self._lock:
            self._board.join(rank)

    def leave(self, rank: int) -> None:
        """Mark a rank as left."""
        with self._lock:
            self._board.leave(rank)

    def show_size(self, n: int, target: int | None, note: str) -> None:
        """Show the number of ranks, with controls to change it, the requested number, and the progress."""
        with self._lock:
            self._board.size = Size(n, target, note)

    def explain(self, sentence: str) -> None:
        """Show why ranks wait; "" when they do not."""
        with self._lock:
            self._board.wait = sentence

    def show_other_ranks(self, sentence: str) -> None:
        """Show the sentence about other notebooks' ranks on this host; "" if there are none."""
        with self._lock:
            self._board.other_ranks = sentence

    @property
    def shown(self) -> bool:
        """True if it has been displayed."""
        return self._panel is not None

    @property
    def timeline_due(self) -> bool:
        """True if a page shows the timeline, and the ranks are to be queried now."""
        with self._lock:
            return self._live.due

    def timeline_question(self, ranks: Sequence[int], *, over: bool) -> tuple[list[int], dict[str, Any]]:
        """Return the ranks to query for their latest operations, and the query; ``over``: the cell has ended."""
        with self._lock:
            return self._live.question(ranks, map(int, self._board.slow), over=over)

    def feed_recent(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Add the latest operations of ranks, and show them."""
        with self._lock:
            self._live.update(answers)
            message = self._live.message()
        if self._panel is not None:
            self._panel.send({"timeline": message})

    def flush(self) -> None:
        """Send the changes to the browser, if there is one and enough time has passed since the last flush."""
        now = time.monotonic()
        if self._panel is None or now - self._flushed < (FLUSH_S if len(self._board.ranks) <= FEW else MANY_FLUSH_S):
            return
        self._flushed = now
        with self._lock:
            news, whole = self._board.increment()
        self._panel.send(news)
        if whole:
            self._panel.send_state("snapshot")

    def finish(self, states: Mapping[int, str]) -> None:
        """Freeze the figures with each rank's final state: "done", "failed", "dead", "interrupted", or another word."""
        with self._lock:
            self._board.finish(states)
        if self._panel is not None:
            self._panel.send_state("snapshot")

    def summary(self) -> dict[str, Any]:
        """Return the figures of the cell, JSON-able (see ``summary`` of board.py)."""
        with self._lock:
            return summary(self._board)

    def curves(self) -> dict[str, tuple[list[float], list[float | None]]]:
        """Return the cell's curves (see ``curves_of`` of board.py)."""
        with self._lock:
            return curves_of(self._board)

    def static_bundle(self) -> Bundle:
        """Return a display bundle that needs no script and no kernel; its text depends on the number of ranks only."""
        with self._lock:
            board, digest = self._board.snapshot(), summary(self._board)
        count = len(digest["ranks"])
        text = f"hvd dashboard: {plural(count, 'rank')}"
        return {"image/svg+xml": render(board), "text/plain": text}, {"hvd": {**self.origin, **digest}}

    def _repr_mimebundle_(self, **_options: object) -> Bundle:
        if self._panel is None:
            self._panel = Panel(self._snapshot, self._resize, self._request_timeline)
        live = self._panel._repr_mimebundle_() or ({}, {})
        data, metadata = self.static_bundle()
        return {**live[0], **data}, {**live[1], **metadata}

    def _request_timeline(self, picked: int | None, whole: bool) -> None:
        with self._lock:
            self._live.request(picked, whole=whole)

    def _resize(self, n: int) -> None:
        self.on_resize(n)

    def _snapshot(self) -> dict[str, Any]:
        with self._lock:
            stored = self._live.stored() if self._board.states is not None else None
            return self._board.snapshot() | ({"timeline": stored} if stored else {})
