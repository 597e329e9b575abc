"""The writer of the running cell, through which all magics show their output.

Terms.
  terminal      plain IPython: no display messages, streams are shown at once
  interactive   a notebook with a user (the front end answers stdin): widgets and updates are sent
  headless      nbclient, nbconvert, nbval, papermill: all output is stored, so it is sent once and in order
  has user      interactive or terminal: only there is text written that differs from run to run
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

Handle = Any
"""IPython's DisplayHandle, which has no type annotations."""

_display: Callable[..., Handle | None] = display

HEADLESS_ENV = ("HVD_KERNEL_NONINTERACTIVE", "IPP_NONINTERACTIVE")


class Writer:
    """Output of the running cell."""

    def __init__(self, shell: InteractiveShell) -> None:
        kernel = getattr(shell, "kernel", None)
        headless = any(os.environ.get(name) == "1" for name in HEADLESS_ENV)
        self.kernel = kernel
        self.terminal = kernel is None and not headless
        self.interactive = kernel is not None and not headless and bool(getattr(kernel, "_allow_stdin", False))
        self.has_user = self.interactive or self.terminal

    def write(self, text: str, stream: str = "stdout") -> None:
        """Write text to a stream, as one message."""
        if text:
            out = sys.stderr if stream == "stderr" else sys.stdout
            out.write(text)
            out.flush()

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Publish a MIME bundle."""
        _display(data, metadata=metadata or {}, raw=True)

    def live(self, thing: object) -> Handle | None:
        """Display an object that will be updated; only if ``interactive``."""
        return _display(thing, display_id=True)

    def updatable(self, data: dict[str, Any]) -> Handle | None:
        """Publish a MIME bundle that ``update`` can replace later, also after the cell."""
        return _display(data, raw=True, display_id=True)

    def status(self) -> Status:
        """Return a line of text that can be replaced."""
        return Status(self)


class Status:
    """Progress of a slow operation: one line that changes, shown only if there is a user."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._handle: Handle | None = None
        self.is_shown = False

    def __call__(self, text: str) -> None:
        """Show the line."""
        self.is_shown = self._writer.has_user
        if self._writer.interactive:
            data = {"text/plain": text}
            if self._handle is None:
                self._handle = _display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
        elif self._writer.terminal:
            self._writer.write(f"{text}\n", "stderr")


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Return rows as text in aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
