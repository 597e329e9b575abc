"""The writer of the running cell: everything the magics show goes through here.

Terms.
  terminal      plain IPython: no display messages, streams are seen at once
  interactive   a notebook with a user in front (the front end answers stdin): widgets and updates are worth sending
  headless      nbclient, nbconvert, nbval, papermill: what is sent is what is stored, once and in order
  looked at     by the user: only there may be written what differs from run to run
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

Handle = Any
"""IPython's DisplayHandle, which is not typed."""

_display: Callable[..., Handle | None] = display

HEADLESS_ENV = ("HVD_KERNEL_NONINTERACTIVE", "IPP_NONINTERACTIVE")


class Writer:
    """Where the running cell's output goes."""

    def __init__(self, shell: InteractiveShell) -> None:
        kernel = getattr(shell, "kernel", None)
        told = any(os.environ.get(name) == "1" for name in HEADLESS_ENV)
        self.kernel = kernel
        self.terminal = kernel is None and not told
        self.interactive = kernel is not None and not told and bool(getattr(kernel, "_allow_stdin", False))
        self.looked_at = self.interactive or self.terminal

    def say(self, text: str, stream: str = "stdout") -> None:
        """Write text to a stream, as one message."""
        if text:
            out = sys.stderr if stream == "stderr" else sys.stdout
            out.write(text)
            out.flush()

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Publish a mime bundle."""
        _display(data, metadata=metadata or {}, raw=True)

    def live(self, thing: object) -> Handle | None:
        """Display something that will be updated; only where ``interactive``."""
        return _display(thing, display_id=True)

    def updatable(self, data: dict[str, Any]) -> Handle | None:
        """Publish a mime bundle that ``update`` can replace later, also when the cell has ended."""
        return _display(data, raw=True, display_id=True)

    def status(self) -> Status:
        """Return a line of text that can be written again."""
        return Status(self)


class Status:
    """Progress of something slow: one line that changes where the user looks on, nothing that varies elsewhere."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._handle: Handle | None = None

    def __call__(self, text: str) -> None:
        """Show the line."""
        if self._writer.interactive:
            data = {"text/plain": text}
            if self._handle is None:
                self._handle = _display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
        elif self._writer.terminal:
            self._writer.say(f"{text}\n", "stderr")
