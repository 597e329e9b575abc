"""The output buffer of one rank in a cell, as it will be stored: two streams, displays in their last state, results.

Terms.
  unseen     lines after ``fresh``, which somebody was shown in the middle of the cell
"""

from __future__ import annotations

from dataclasses import replace

from hvd_kernel.magics.display.merge import merge_lines
from hvd_kernel.magics.display.terminal_lines import Lines, TextLimits
from hvd_kernel.protocol.messages import Cleared, LeftOut, RichOutput, TextDelta

STREAMS = ("stdout", "stderr")

MAX_RICH = 200
"""Rich outputs kept of each rank."""

Output = TextDelta | RichOutput | Cleared | LeftOut


class OutputBuffer:
    """One rank's output."""

    def __init__(self, limits: TextLimits, where: str = "") -> None:
        self._limits = limits
        self._where = where
        self._to_clear = False  # the next output replaces what is there
        self._empty()

    def _empty(self) -> None:
        self._to_clear = False
        self.text = {stream: Lines(self._limits, self._where) for stream in STREAMS}
        self.rich: list[RichOutput] = []
        self.left_out = 0  # displays
        self._unseen: dict[str, Lines] = {}

    def take(self, event: Output) -> None:
        """Take what the rank shows next, in its order."""
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
        """Return the lines of a stream that nobody has seen."""
        return self._unseen.get(stream, self.text[stream]).lines()

    def fresh(self, rank: int) -> str:
        """Return them labelled; they count as seen now."""
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
