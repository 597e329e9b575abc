"""Capture of this rank's displays: limited in number and in updates per second; widgets as text of their last state.

An update replaces the stored display, so only the last one matters; earlier ones between two ticks are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ipykernel.jsonutil import encode_images, json_clean
from ipykernel.zmqshell import ZMQDisplayPublisher

from hvd_kernel.protocol.messages import LEFT_OUT_TYPE

MAX_DISPLAYS = 200
MAX_BYTES = 32 << 20
"""Limits of a cell; the notebook gets the number of displays that were left out."""

_VIEW = "application/vnd.jupyter.widget-view+json"


class RankDisplay(ZMQDisplayPublisher):
    """Display publisher that uses the rank's output, so that text and displays keep their order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._updates: dict[str, dict[str, Any]] = {}
        self._widgets: dict[str, tuple[Any, dict[str, Any]]] = {}  # display_id -> widget, and the data shown
        self._shown = self._bytes = self._left_out = 0

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        """Send a display, or store an update for the next tick."""
        output = self.shell.kernel.output
        transient = dict(transient or {})
        if update:
            images = encode_images(data)  # type: ignore[no-untyped-call]
            content = {"data": images, "metadata": metadata or {}, "transient": transient}
            self._updates[transient["display_id"]] = json_clean(content)  # type: ignore[no-untyped-call]
            output.at_tick(self._send_updates)
            return
        self._shown += 1
        self._bytes += sum(len(body) for body in data.values() if isinstance(body, str | bytes))
        if self._shown > MAX_DISPLAYS or self._bytes > MAX_BYTES:
            self._left_out += 1
            return
        if widget := _widget(data):
            transient.setdefault("display_id", f"widget-{widget.model_id}")
            self._widgets[transient["display_id"]] = widget, dict(data)
        output.flush()
        super().publish(data, metadata, transient=transient, **kwargs)  # type: ignore[no-untyped-call]

    def clear_output(self, wait: bool = False) -> None:
        """Clear the output of the cell."""
        output = self.shell.kernel.output
        output.flush()
        self._reset()
        super().clear_output(wait)  # type: ignore[no-untyped-call]
        output.restart()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Capture the displays of a cell until the block ends."""
        self._reset()
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """Send the last state of updated displays and widgets, and the number of displays left out."""
        for display_id, (widget, shown) in self._widgets.items():
            if (text := repr(widget)) != shown.get("text/plain"):
                self.publish({**shown, "text/plain": text}, transient={"display_id": display_id}, update=True)
        self._send_updates()
        if self._left_out:
            self.shell.kernel.output.send(LEFT_OUT_TYPE, {"displays": self._left_out})
        self._reset()

    def _reset(self) -> None:
        self._updates, self._widgets = {}, {}
        self._shown = self._bytes = self._left_out = 0

    def _send_updates(self) -> None:
        while self._updates:  # the main thread may add more meanwhile
            self.shell.kernel.output.send("update_display_data", self._updates.popitem()[1])

    def _flush_streams(self) -> None:
        """Do nothing: ``publish`` flushes."""


def _widget(data: dict[str, Any]) -> Any:
    """Return the ipywidgets object of a display; its model is in this process, so no front end can show it."""
    widgets = sys.modules.get("ipywidgets.widgets.widget")
    model = data.get(_VIEW, {}).get("model_id")
    return widgets._instances.get(model) if widgets is not None else None  # noqa: SLF001 - the public way is deprecated
