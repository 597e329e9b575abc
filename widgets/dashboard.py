"""Dashboard widget of one cell: fed by any thread, shown live in a browser, as a picture wherever no browser listens.

The widget model is made when the dashboard is first displayed, so that a run without a front end sends nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from hvd_kernel.diagnosis.limits_of_run import Possible
from hvd_kernel.formatting.plural import plural
from hvd_kernel.processes.resources import bandwidth
from hvd_kernel.protocol.messages import READABLE, MetricsSample
from hvd_kernel.widgets.board import Board, Size
from hvd_kernel.widgets.limits_window import LimitsWindow
from hvd_kernel.widgets.marks import Kind
from hvd_kernel.widgets.picture import render
from hvd_kernel.widgets.series import FEW
from hvd_kernel.widgets.summary import curves_of, summary
from hvd_kernel.widgets.swimlanes.live import Live

HERE = Path(__file__).parent
FLUSH_S = 0.1
"""Increments leave at most this often."""

MANY_FLUSH_S = 0.2
"""Of more than a few ranks this often."""

MOST_RANKS = 1 << 16
"""No page asks for more."""

Bundle = tuple[dict[str, Any], dict[str, Any]]


def _source(*names: str) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def _possible(ranks: int) -> Possible:
    """Return what ``hvd.bench()`` has measured here for so many ranks; it is read when it is asked for first."""

    @cache
    def found() -> bandwidth.Bandwidth | None:
        return bandwidth.kept(ranks)

    def possible(nbytes: float) -> float | None:
        known = found()
        return None if known is None else known.bus(known.possible(nbytes))

    return possible


class Panel(anywidget.AnyWidget):
    """The browser's side. Its one trait stands for the board's snapshot, made at the moment somebody asks for it."""

    _esm = _source("static/dashboard.js")
    _css = _source("static/uPlot.min.css", "dashboard.css")
    snapshot = traitlets.Any().tag(
        sync=True,
        to_json=lambda _value, panel: panel.current(),
        from_json=lambda _value, _panel: None,  # the browser has nothing to say about what ranks did
    )

    def __init__(
        self,
        current: Callable[[], dict[str, Any]],
        resize: Callable[[int], None],
        wish: Callable[[int | None, bool], None],
    ) -> None:
        self.current, self._resize, self._wish = current, resize, wish
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
                self._wish(picked, whole)


class Dashboard:
    """Live figures and output of ``ranks`` under ``title``.

    ``before`` holds each rank's last sample of an earlier cell: with it, rates count from the beginning of this cell.
    ``cores`` is how many the ranks share, where all of them are on this host.
    ``feed`` and ``feed_text`` are cheap and may be called from any thread; ``flush`` sends what is new.
    """

    def __init__(
        self, ranks: Sequence[int], title: str, before: Mapping[int, MetricsSample] | None = None, cores: int = 0
    ) -> None:
        self._lock = threading.Lock()
        self._board = Board(ranks, title, time.monotonic, before, LimitsWindow(_possible(len(ranks)), cores))
        self._panel: Panel | None = None
        self._flushed = 0.0
        self.origin: Mapping[str, Any] = {}  # of the cell: what stands in the metadata beside the figures
        self._live = Live()
        self.on_resize: Callable[[int], None] = lambda _n: None  # of a page that asks for so many ranks, on any thread

    def feed(self, sample: MetricsSample) -> None:
        """Take a rank's telemetry."""
        with self._lock:
            self._board.feed(sample)

    def feed_text(self, rank: int, stream: str, text: str) -> None:
        """Take what a rank printed."""
        with self._lock:
            self._board.log.feed(rank, stream, text)

    def mark(self, kind: Kind, label: str) -> None:
        """Mark this moment on the time axis."""
        with self._lock:
            self._board.mark(kind, label)

    def warn(self, text: str) -> None:
        """Show a warning about the run."""
        with self._lock:
            self._board.warn(text)

    def join(self, rank: int) -> None:
        """Have a rank that is new in the cell, or in the place of one that was there."""
        with self._lock:
            self._board.join(rank)

    def leave(self, rank: int) -> None:
        """Have a rank no more."""
        with self._lock:
            self._board.leave(rank)

    def show_size(self, n: int, wanted: int | None, note: str) -> None:
        """Show how many ranks there are, to be changed there, how many are wanted, and how far that is."""
        with self._lock:
            self._board.size = Size(n, wanted, note)

    def explain(self, sentence: str) -> None:
        """Say why ranks wait, "" when they do not."""
        with self._lock:
            self._board.wait = sentence

    def tell_other_ranks(self, sentence: str) -> None:
        """Say who shares this host with the ranks, "" where nobody does."""
        with self._lock:
            self._board.other_ranks = sentence

    @property
    def shown(self) -> bool:
        """Whether it has been displayed."""
        return self._panel is not None

    @property
    def timeline_due(self) -> bool:
        """Whether a page shows the timeline, and ranks are to be asked for it now."""
        with self._lock:
            return self._live.due

    def timeline_question(self, ranks: Sequence[int], *, over: bool) -> tuple[list[int], dict[str, Any]]:
        """Return which of the ranks to ask what they did lately, and the question; over: the cell is."""
        with self._lock:
            return self._live.question(ranks, map(int, self._board.slow), over=over)

    def feed_recent(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Take what ranks did lately, and show it."""
        with self._lock:
            self._live.take(answers)
            message = self._live.message()
        if self._panel is not None:
            self._panel.send({"timeline": message})

    def flush(self) -> None:
        """Send the news to the browser, if there is one and the last flush was not a moment ago."""
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
        """Freeze with each rank's final state: "done", "failed", "dead", "interrupted", or any other word."""
        with self._lock:
            self._board.finish(states)
        if self._panel is not None:
            self._panel.send_state("snapshot")

    def summary(self) -> dict[str, Any]:
        """Return the cell in numbers, JSON-able (see ``summary.summary``)."""
        with self._lock:
            return summary(self._board)

    def curves(self) -> dict[str, tuple[list[float], list[float | None]]]:
        """Return the cell's curves (see ``summary.curves_of``)."""
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
            self._panel = Panel(self._snapshot, self._resize, self._wish)
        live = self._panel._repr_mimebundle_() or ({}, {})
        data, metadata = self.static_bundle()
        return {**live[0], **data}, {**live[1], **metadata}

    def _wish(self, picked: int | None, whole: bool) -> None:
        with self._lock:
            self._live.wish(picked, whole=whole)

    def _resize(self, n: int) -> None:
        self.on_resize(n)

    def _snapshot(self) -> dict[str, Any]:
        with self._lock:
            stored = self._live.stored() if self._board.states is not None else None
            return self._board.snapshot() | ({"timeline": stored} if stored else {})
