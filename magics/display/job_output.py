"""A job's writer: what its cell would have shown, kept until somebody asks, and shown there where the user looks.

Terms.
  panel    the one output that changes after the cell has ended: a line, then the live dashboard, then its last state
  outlet   the real writer; what goes there from the job's context lands in the cell that started the job
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.display.error_policy import as_text
from hvd_kernel.magics.display.render import figures
from hvd_kernel.magics.display.writer import Handle, Writer

if TYPE_CHECKING:
    from hvd_kernel.widgets import Dashboard

Show = Callable[[Writer], None]


class JobWriter(Writer):
    """Keeps a job's output; live in its panel, and written to its cell at the end, where the user looks."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._outlet = Writer(shell)
        self.terminal = False  # a terminal's prompt is not to be written over: all text is kept
        self._kept: list[Show] = []
        self._panel: Handle | None = None
        self._board: Dashboard | None = None

    def open(self, job: str, ranks: Sequence[int], state: str) -> None:
        """Say in the cell that there is a job; called before the cell ends."""
        self._outlet.say(f"job {job} on {rank_list(ranks)}: %hvdjobs, %hvdcancel {job}\n")
        if self.interactive:
            self._panel = self._outlet.updatable({"text/plain": f"job {job}: {state}"})

    def close(self, job: str, state: str, error: BaseException | None) -> None:
        """Keep the error, and write everything to the cell where the user looks."""
        if error is not None:
            self.say(as_text(error), "stderr")
        if self._panel is None:
            return
        if self._board is None:
            self._panel.update({"text/plain": f"job {job}: {state}"}, raw=True)
        for show in self._kept:
            show(self._outlet)

    def replay(self, writer: Writer) -> None:
        """Show everything once more, as the cell would have."""
        if self._board is not None:
            _show(*self._board.static_bundle(), writer)
        for show in self._kept:
            show(writer)

    def say(self, text: str, stream: str = "stdout") -> None:
        """Keep text."""
        if text:
            self._kept.append(lambda writer: writer.say(text, stream))

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Keep a mime bundle."""
        self._kept.append(partial(_show, data, metadata))

    def live(self, thing: Any) -> Handle | None:
        """Turn the panel into the dashboard."""
        self._board = thing
        if self._panel is not None:
            self._panel.update(thing)
        return self._panel


def _show(data: dict[str, Any], metadata: dict[str, Any] | None, writer: Writer) -> None:
    if writer.terminal and metadata and "hvd" in metadata:
        writer.say(figures(metadata["hvd"]))
    else:
        writer.show(data, metadata)
