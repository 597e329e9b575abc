"""Earlier cells of this rank under IPython's names, by the notebook's numbers: ``_``, ``Out[7]``, ``_7``, ``In[7]``.

A rank keeps few results: every result may hold tensors, and on a GPU they are what memory is short of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from IPython.core.history import HistoryManager

KEPT_RESULTS = 3
"""Of a rank's cells: ``_``, ``__`` and ``___``, which ``Out`` has by number."""

_UNDERSCORES = ("_", "__", "___")


class RankDisplayHook(ZMQShellDisplayHook):
    """Display hook that keeps the latest results."""

    shell: Any  # an InteractiveShell, never None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "cache_size": KEPT_RESULTS})  # type: ignore[no-untyped-call]

    def cull_cache(self) -> None:
        """Release the oldest results; the base class warns, and goes by numbers, which another kernel counts again."""
        kept = self.shell.user_ns["_oh"]
        self._release(list(kept)[: len(kept) - KEPT_RESULTS + 1])

    def forget(self) -> None:
        """Release all results."""
        self._release(list(self.shell.user_ns["_oh"]))
        for name in _UNDERSCORES:
            result = getattr(self, name)
            for names in (self.shell.user_ns, self.shell.user_ns_hidden):
                if names.get(name) is result:
                    names[name] = ""
            setattr(self, name, "")

    def _release(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.shell.user_ns["_oh"].pop(number, None)
            for names in (self.shell.user_ns, self.shell.user_ns_hidden):
                names.pop(f"_{number}", None)


class RankHistory(HistoryManager):
    """Inputs of this rank's cells, each at the number that the notebook gives its cell."""

    def align(self, number: int) -> None:
        """Have the next cell's input recorded at this number; cells of the notebook itself leave a gap."""
        for inputs in (self.input_hist_parsed, self.input_hist_raw):
            del inputs[number:]  # another kernel's cells, or an earlier part of this one
            inputs.extend([""] * (number - len(inputs)))

    def forget(self) -> None:
        """Drop what IPython records for each cell beside input and result: text, and rows for a database."""
        for records in (self.outputs, self.exceptions, self.output_hist_reprs, self.db_input_cache):
            records.clear()

    def _get_range_session(self, *args: Any, **kwargs: Any) -> Iterable[tuple[int, int, Any]]:
        rows: Iterable[tuple[int, int, Any]] = super()._get_range_session(*args, **kwargs)
        return (row for row in rows if row[2] and row[2] != ("", None))
