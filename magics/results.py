"""Values that differ per rank, in the notebook: ``loss[0]``, ``loss.rank(0)``, shown once for ranks that agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hvd_kernel.magics.merge import labelled, merge


class PerRank(Mapping[int, Any]):
    """One value per rank; a read-only mapping from rank to value."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = dict(sorted(values.items()))

    def rank(self, rank: int) -> Any:
        """Return the value of one rank."""
        return self[rank]

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._values:
            raise KeyError(f"no value of rank {rank}; there are values of {sorted(self._values)}")
        return self._values[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = merge({rank: [repr(value)] for rank, value in self._values.items()})
        return "\n".join(labelled(ranks, text) for ranks, text in shown)


class CellResult(PerRank):
    """What ``-o name`` keeps of a cell: the ranks' last expressions, and what they printed."""

    def __init__(self, values: Mapping[int, Any], stdout: Mapping[int, str], stderr: Mapping[int, str]) -> None:
        super().__init__(values)
        self.stdout = dict(stdout)
        self.stderr = dict(stderr)
