"""Recent operations of a rank, as sent to the notebook: the data of the panel's timeline.

Terms.
  operation  one execution in the core: of one tensor, or of several fused ones
  waits      intervals in which a thread of the user was blocked in an operation
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Operation(NamedTuple):
    """One operation on one rank; times in microseconds of its host's CLOCK_MONOTONIC. A list in this order in JSON."""

    asked: int  # its first tensor was submitted; the name is also the page's (widgets/js/lanes/model.js)
    ready: int  # its last tensor was submitted: from here on this rank waited only for other ranks
    agreed: int  # all ranks had submitted it
    begun: int  # it left the queue with its data available
    end: int
    kind: str  # "ALLREDUCE"
    name: str  # of the first tensor
    how: str  # algorithm: "SHM_SLICES", "" if there was nothing to do
    tensors: int = 1
    bytes: int = 0
    merged: int = 1  # number of short operations that this one stands for


class Open(NamedTuple):
    """An operation that is not complete."""

    name: str
    since: int
    missing: tuple[int, ...]  # ranks that have not submitted it, as far as this rank knows


@dataclass(frozen=True)
class Recent:
    """One rank's recent operations."""

    host: str
    now: int  # microseconds of that host's CLOCK_MONOTONIC
    cursor: tuple[int, int] = (0, 0)  # start of the next query: number of its engine, and of the record
    operations: tuple[Operation, ...] = ()
    waits: tuple[tuple[int, int], ...] = ()
    open: tuple[Open, ...] = ()
    came: int = 0  # start of its first cell on that clock; 0: not yet

    def wire(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "host": self.host,
            "now": self.now,
            "cursor": list(self.cursor),
            "operations": [list(operation) for operation in self.operations],
            "waits": [list(interval) for interval in self.waits],
            "open": [[pending.name, pending.since, list(pending.missing)] for pending in self.open],
            "came": self.came,
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Recent:
        """Rebuild it from the dict of ``wire``."""
        return cls(
            content["host"],
            content["now"],
            tuple(content["cursor"]),
            tuple(Operation(*row) for row in content["operations"]),
            tuple((begin, end) for begin, end in content["waits"]),
            tuple(Open(name, since, tuple(missing)) for name, since, missing in content["open"]),
            content["came"],
        )
