"""Rendering of a run's events as a cell's output.

The stored output depends on what the ranks did, not on when: a dashboard if they trained, one stdout stream, one stderr
stream, rich displays, results; ranks in order, equal items once, bounded. While the cell runs, the user sees the
dashboard, with live text and figures; in a terminal lines appear as they are printed.

Terms.
  buffer     the output of one rank as it will be stored: two streams, displays in their last state, results
  unseen     lines after the last ``pop_unseen``, which showed the earlier ones to the user during the cell
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.formatting.rank_labels import label
from hvd_kernel.formatting.units import plural
from hvd_kernel.magics.cell_record import CellRecord, of_summary
from hvd_kernel.magics.display.rank_text import Lines, TextLimits, labelled, merge, merge_lines
from hvd_kernel.protocol.messages import (
    Cleared,
    Event,
    Failure,
    LeftOut,
    MetricsSample,
    RankDone,
    RankJoined,
    RankLeft,
    RankLost,
    RichOutput,
    StepsUndone,
    TextDelta,
)

if TYPE_CHECKING:
    from hvd_kernel.magics.display.writer import Writer
    from hvd_kernel.widgets import Dashboard
    from hvd_kernel.widgets.board import Kind


STREAMS = ("stdout", "stderr")

MAX_RICH = 200
"""Rich outputs that are kept of each rank."""

Output = TextDelta | RichOutput | Cleared | LeftOut


class OutputBuffer:
    """The output of one rank."""

    def __init__(self, limits: TextLimits, where: str = "") -> None:
        self._limits = limits
        self._where = where
        self._to_clear = False  # the next output replaces the earlier one
        self._empty()

    def _empty(self) -> None:
        self._to_clear = False
        self.text = {stream: Lines(self._limits, self._where) for stream in STREAMS}
        self.rich: list[RichOutput] = []
        self.left_out = 0  # displays
        self._unseen: dict[str, Lines] = {}

    def handle(self, event: Output) -> None:
        """Apply the rank's next output."""
        if isinstance(event, Cleared):
            self._to_clear = True
            if not event.wait:
                self._empty()
        elif isinstance(event, LeftOut):
            self.left_out += event.displays
        elif isinstance(event, RichOutput) and event.update:
            self._update(event)
        elif not (isinstance(event, TextDelta) and event.live):
            if self._to_clear:
                self._empty()
            self._add(event)

    def lines(self, stream: str) -> list[str]:
        """Return the unseen lines of a stream."""
        return self._unseen.get(stream, self.text[stream]).lines()

    def pop_unseen(self, rank: int) -> str:
        """Return the unseen lines with the rank's label, and count them as seen."""
        text = "".join(merge_lines({rank: self.lines(stream)}) for stream in STREAMS)
        self._unseen = {stream: Lines(self._limits, self._where) for stream in STREAMS}
        return text

    def _add(self, event: TextDelta | RichOutput) -> None:
        if isinstance(event, RichOutput):
            if len(self.rich) < MAX_RICH or event.is_result:
                self.rich.append(event)
            else:
                self.left_out += 1
            return
        for texts in (self.text, self._unseen):
            if event.stream in texts:
                texts[event.stream].skip(*event.skipped)
                texts[event.stream].feed(event.text)

    def _update(self, event: RichOutput) -> None:
        for i, old in enumerate(self.rich):
            if old.display_id == event.display_id:
                self.rich[i] = replace(event, update=False)


SHOW_AFTER_S = 1.0
"""Time until a running cell shows its dashboard, if there is a user."""

FLUSH_S = 0.1

Bundle = dict[str, Any]
"""MIME type to data, or to metadata."""


class CellOutput:
    """Output and figures of one cell; ``finish`` writes the output that is stored."""

    def __init__(
        self,
        writer: Writer,
        board: Dashboard,
        ranks: Sequence[int],
        before: Mapping[int, MetricsSample] | None = None,
        cell: int = 0,
    ) -> None:
        self._limits = TextLimits.for_ranks(len(ranks))
        self._where = f"%hvdlogs --cell {cell}" if cell else ""
        self._writer = writer
        self._board = board
        self._before = dict(before or {})
        self._buffers = {rank: OutputBuffer(self._limits, self._where) for rank in ranks}
        self._failures: dict[int, Failure] = {}
        self._lost: set[int] = set()  # ranks that died and may be replaced
        self._gone: set[int] = set()  # ranks that have left
        self._trained = False
        self.latest: dict[int, MetricsSample] = {}
        self._warnings: list[str] = []  # not yet written
        self._handle: Any = None
        self._printed: dict[tuple[int, str], str] = {}  # a terminal's unfinished lines
        self._start = self._flushed = time.monotonic()

    def handle(self, event: Event) -> None:
        """Handle the next event; events of ranks outside the run are ignored."""
        if isinstance(event, RankJoined):
            self._buffers.setdefault(event.rank, OutputBuffer(self._limits, self._where))
            self._gone.discard(event.rank)
            self._board.join(event.rank)
        if event.rank not in self._buffers:
            return
        if isinstance(event, TextDelta | RichOutput | Cleared | LeftOut):
            self._buffers[event.rank].handle(event)
        if isinstance(event, TextDelta):
            self._show_text(event)
        elif isinstance(event, MetricsSample):
            self._trained = self._trained or self._is_training(event)
            self.latest[event.rank] = event
            self._board.feed(event)
        elif isinstance(event, RankDone) and event.failure:
            self._failures[event.rank] = event.failure
            if event.rank not in self._lost and event.failure.ename == "RankDied" and not event.failure.secondary:
                self._board.mark("died", f"rank {event.rank} died")
        else:
            self._handle_change(event)

    def _handle_change(self, event: Event) -> None:
        """Handle a change of the ranks, or of their steps."""
        match event:
            case StepsUndone():
                self._board.mark("lost", steps_lost(event.steps))
            case RankLeft(rank):
                self._gone.add(rank)
                self.latest.pop(rank, None)
                self._board.leave(rank)
            case RankLost(rank):
                self._board.mark("died", f"rank {rank} died")
                self._lost.add(rank)

    def tick(self) -> None:
        """Update the dashboard, if there is a user; called often."""
        now = time.monotonic()
        if not self._writer.interactive or now - self._start < SHOW_AFTER_S or now - self._flushed < FLUSH_S:
            return
        self._flushed = now
        if self._handle is None:
            self._handle = self._writer.live(self._board)
        self._board.flush()

    def mark(self, kind: Kind, text: str) -> None:
        """Mark the current time on the time axis."""
        self._lost.clear()
        self._board.mark(kind, text)

    def show_size(self, n: int, target: int | None = None, note: str = "") -> None:
        """Show the number of ranks, with controls to change it, the requested number, and the progress."""
        self._board.show_size(n, target, note)

    def explain(self, sentence: str) -> None:
        """Show why ranks wait, if there is a user; "" when they no longer do."""
        self._board.explain(sentence)
        if self._writer.terminal and sentence:
            self._writer.write(f"{sentence}\n", "stderr")

    def warn(self, text: str) -> None:
        """Show a warning on the panel and in the cell's stderr: at once if there is a user, else at the end."""
        self._board.warn(text)
        if self._writer.has_user:
            self._writer.write(f"{text}\n", "stderr")
        else:
            self._warnings.append(text)

    def notify(self, text: str) -> None:
        """Write text at once, if there is a user."""
        if self._writer.interactive or self._writer.terminal:
            self._writer.write(text, "stderr")

    def finish(self, state: str = "done") -> None:
        """Write the output that is stored; ``state`` is the final state of ranks that did not fail."""
        self._board.finish({rank: self._final_state(rank, state) for rank in self._buffers})
        self._finish_board()
        self._writer.write("".join(f"{text}\n" for text in self._warnings), "stderr")
        if self._writer.terminal:
            for rank, stream in list(self._printed):
                self._print(rank, stream, "\n")
        else:
            for stream in STREAMS:
                rest = {rank: buffer.lines(stream) for rank, buffer in self._buffers.items()}
                self._writer.write(merge_lines(rest), stream)
        self._finish_rich()

    def pop_unseen(self, rank: int) -> str:
        """Return a rank's unseen lines with its label; ``finish`` does not write them again."""
        if not self._writer.terminal:
            return self._buffers[rank].pop_unseen(rank)
        for stream in STREAMS:
            self._print(rank, stream, "\n" if (rank, stream) in self._printed else "")
        return ""

    def printed(self, stream: str) -> dict[int, str]:
        """Return the kept text of each rank on a stream."""
        return {rank: "\n".join(buffer.text[stream].lines()) for rank, buffer in self._buffers.items()}

    @property
    def trained(self) -> bool:
        """True if the ranks have taken optimizer steps, or logged values."""
        return self._trained

    def record(self) -> CellRecord:
        """Return the run's figures; after ``finish``."""
        return of_summary(self._board.summary(), self._board.curves())

    def _is_training(self, sample: MetricsSample) -> bool:
        before = self._before.get(sample.rank)
        return bool(sample.logged) or sample.step != (before.step if before else 0)

    def _show_text(self, event: TextDelta) -> None:
        self._board.feed_text(event.rank, event.stream, event.text)
        if self._writer.terminal and not event.live:
            if lines := event.skipped[1]:
                self._print(event.rank, event.stream, f"\n… {lines:,} lines more: {self._where}\n")
            self._print(event.rank, event.stream, event.text)

    def _print(self, rank: int, stream: str, text: str) -> None:
        *whole, rest = (self._printed.pop((rank, stream), "") + text).split("\n")
        if rest:
            self._printed[rank, stream] = rest[-4096:].rpartition("\r")[2]
        self._writer.write("".join(f"{label([rank])} {line.rpartition(chr(13))[2]}\n" for line in whole), stream)

    def _final_state(self, rank: int, state: str) -> str:
        """Return a rank's final state; after an interrupt by the user, KeyboardInterrupt is not a failure."""
        if rank in self._gone:
            return "left"
        failure = self._failures.get(rank)
        obeyed = state == "interrupted" and failure is not None and failure.ename == "KeyboardInterrupt"
        return state if failure is None or obeyed else "failed"

    def _finish_board(self) -> None:
        if self._handle is not None:
            self._handle.update(self._board)
        elif not self._trained:
            return
        elif self._writer.interactive:
            self._writer.live(self._board)
        elif self._writer.terminal:
            self._writer.write(figures(self._board.summary()))
        else:
            self._writer.show(*self._board.static_bundle())

    def _finish_rich(self) -> None:
        results = {rank: [_key(o) for o in buffer.rich if o.is_result] for rank, buffer in self._buffers.items()}
        displays = {rank: [_key(o) for o in buffer.rich if not o.is_result] for rank, buffer in self._buffers.items()}
        left_out = {rank: [buffer.left_out] for rank, buffer in self._buffers.items() if buffer.left_out}
        for ranks, key in merge(displays):
            self._show_labelled(ranks, *json.loads(key))
        for ranks, count in merge(left_out):
            self._writer.show({"text/plain": f"{label(ranks)} … {count:,} displays more, which were too many to keep"})
        self._finish_results([(ranks, *json.loads(key)) for ranks, key in merge(results)])

    def _finish_results(self, groups: list[tuple[tuple[int, ...], Bundle, Bundle]]) -> None:
        """Write results: a single one as it is, several texts in one piece, other forms group by group."""
        if len(groups) == 1:
            ranks, data, metadata = groups[0]
            self._writer.show({**data, "text/plain": labelled(ranks, _plain(data))}, metadata)
            return
        for is_text, run in groupby(groups, lambda group: self._writer.terminal or _is_text(group[1])):
            if is_text:
                self._writer.show({"text/plain": "\n".join(labelled(ranks, _plain(data)) for ranks, data, _ in run)})
            else:
                for group in run:
                    self._show_labelled(*group)

    def _show_labelled(self, ranks: tuple[int, ...], data: Bundle, metadata: Bundle) -> None:
        if _is_text(data):
            self._writer.show({"text/plain": labelled(ranks, _plain(data))})
        else:
            self._writer.show({"text/plain": label(ranks)})
            self._writer.show(data, metadata)


def steps_lost(steps: int) -> str:
    """Return the label of a mark for lost steps."""
    return f"{plural(steps, 'step')} lost"


def _key(output: RichOutput) -> str:
    return json.dumps([output.data, output.metadata], sort_keys=True, default=str)


def _is_text(data: Mapping[str, Any]) -> bool:
    return set(data) == {"text/plain"}


def _plain(data: Mapping[str, Any]) -> str:
    text = data.get("text/plain", f"<{', '.join(sorted(data))}>")
    return text if isinstance(text, str) else "".join(text)


def figures(summary: Mapping[str, Any]) -> str:
    """Return a cell's figures in one line, for a terminal."""
    total = summary["samples_per_s"]["total"]
    parts = [f"{len(summary['ranks'])} ranks", f"{summary['steps']} steps", f"{summary['seconds']:.1f} s"]
    parts += [f"{total:,.0f} samples/s"] if total else []
    parts += [f"{name} {value}" for name, value in summary["logged"].items() if value is not None]
    parts += [f"rank {rank} {Slow(*slow)}" for rank, slow in summary["slow"].items()]
    parts += [f"{label} at {at:.1f} s" for at, _, label in summary["marks"]]
    return ", ".join(parts) + "\n"
