"""Writer of a job: keeps the output of its cell for %hvdjobs, and shows it below the cell if there is a user.

Terms.
  panel    the one output that changes after the cell has ended: a line, then the live dashboard, then its last state
  outlet   the real writer; in the job's context its output appears below the cell that started the job
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.display.render import figures
from hvd_kernel.magics.display.user_errors import as_text
from hvd_kernel.magics.display.writer import Handle, Writer

if TYPE_CHECKING:
    from hvd_kernel.widgets import Dashboard

Show = Callable[[Writer], None]


class JobWriter(Writer):
    """Output of a job: live in its panel, and at the end written to its cell, if there is a user."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._outlet = Writer(shell)
        self.terminal = False  # text is kept, so that it does not overwrite a terminal's prompt
        self._kept: list[Show] = []
        self._panel: Handle | None = None
        self._board: Dashboard | None = None

    def open(self, job: str, ranks: Sequence[int], state: str) -> None:
        """Announce the job in its cell; called before the cell ends."""
        self._outlet.write(f"job {job} on {rank_list(ranks)}: %hvdjobs, %hvdcancel {job}\n")
        if self.interactive:
            self._panel = self._outlet.updatable({"text/plain": f"job {job}: {state}"})

    def close(self, job: str, state: str, error: BaseException | None) -> None:
        """Keep the error, and write all output to the cell, if there is a user."""
        if error is not None:
            self.write(as_text(error), "stderr")
        if self._panel is None:
            return
        if self._board is None:
            self._panel.update({"text/plain": f"job {job}: {state}"}, raw=True)
        for show in self._kept:
            show(self._outlet)

    def replay(self, writer: Writer) -> None:
        """Write all output again, as the cell would have shown it."""
        if self._board is not None:
            _show(*self._board.static_bundle(), writer)
        for show in self._kept:
            show(writer)

    def write(self, text: str, stream: str = "stdout") -> None:
        """Keep text."""
        if text:
            self._kept.append(lambda writer: writer.write(text, stream))

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Keep a MIME bundle."""
        self._kept.append(partial(_show, data, metadata))

    def live(self, thing: Any) -> Handle | None:
        """Replace the panel by the dashboard."""
        self._board = thing
        if self._panel is not None:
            self._panel.update(thing)
        return self._panel


def _show(data: dict[str, Any], metadata: dict[str, Any] | None, writer: Writer) -> None:
    if writer.terminal and metadata and "hvd" in metadata:
        writer.write(figures(metadata["hvd"]))
    else:
        writer.show(data, metadata)
