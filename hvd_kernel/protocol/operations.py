"""Recent operations of a rank, as they travel from it to the notebook: what the panel's timeline is drawn from.

Terms.
  operation  what the core carried out at once: one tensor, or several that were fused
  waits      when a thread of the user stood still for one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Operation(NamedTuple):
    """One operation on one rank; times in microseconds of its host's CLOCK_MONOTONIC. A list in this order in JSON."""

    asked: int  # the first of its tensors was asked for
    ready: int  # the last one was: from here on this rank waited for nobody but others
    agreed: int  # all ranks had asked
    begun: int  # it left the queue, its data was there
    end: int
    kind: str  # "ALLREDUCE"
    name: str  # of the first tensor
    how: str  # "SHM_SLICES", "" where nothing was to do
    tensors: int = 1
    bytes: int = 0
    merged: int = 1  # short operations that are shown as this one


class Open(NamedTuple):
    """An operation that is not done."""

    name: str
    since: int
    missing: tuple[int, ...]  # ranks that have not come to it, where this rank knows it


@dataclass(frozen=True)
class Recent:
    """One rank's answer."""

    host: str
    now: int  # microseconds of that host's CLOCK_MONOTONIC
    cursor: tuple[int, int] = (0, 0)  # to ask for what comes later: number of its engine, and of the record
    operations: tuple[Operation, ...] = ()
    waits: tuple[tuple[int, int], ...] = ()
    open: tuple[Open, ...] = ()
    came: int = 0  # when its first cell began, on that clock; 0: not yet

    def wire(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "host": self.host,
            "now": self.now,
            "cursor": list(self.cursor),
            "operations": [list(each) for each in self.operations],
            "waits": [list(each) for each in self.waits],
            "open": [[each.name, each.since, list(each.missing)] for each in self.open],
            "came": self.came,
        }

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Recent:
        """Rebuild it from what ``wire`` has made."""
        return cls(
            content["host"],
            content["now"],
            tuple(content["cursor"]),
            tuple(Operation(*each) for each in content["operations"]),
            tuple((begin, end) for begin, end in content["waits"]),
            tuple(Open(name, since, tuple(missing)) for name, since, missing in content["open"]),
            content["came"],
        )
