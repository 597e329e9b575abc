"""Values per rank, in the notebook: ``loss[0]`` is rank 0's, iteration yields the values in rank order."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

from hvd_kernel.magics.display.rank_text import labelled, merge

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class PerRank:
    """One value per rank: a read-only sequence of values, whose indices are the ranks.

    Iteration, ``list()`` and ``np.asarray()`` yield the values in rank order; ``keys()``, ``values()``, ``items()`` and
    ``dict()`` use ranks as keys. It prints equal values once: ``[0-2] 1.5``.

    Raises
    ------
    KeyError
        ``c[7]`` without a value of rank 7; the message lists the ranks that have one.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = dict(sorted(values.items()))

    def rank(self, rank: int) -> Any:
        """Return the value of one rank."""
        return self[rank]

    def keys(self) -> KeysView[int]:
        """Return the ranks."""
        return self._values.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values, in rank order."""
        return self._values.values()

    def items(self) -> ItemsView[int, Any]:
        """Return pairs of a rank and its value."""
        return self._values.items()

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._values:
            raise KeyError(f"no value of rank {rank}; there are values of {sorted(self._values)}")
        return self._values[rank]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values stacked along a first axis of ranks.

        Raises
        ------
        ValueError
            Their shapes differ, or ``copy=False``, since stacking copies.
        """
        import numpy as np  # noqa: PLC0415 - the kernel starts without it

        if copy is False:
            raise ValueError("copy=False is not possible: one array of several ranks' values is always a copy")
        arrays = [np.asarray(value) for value in self]
        if len({array.shape for array in arrays}) > 1:
            shapes = ", ".join(f"rank {rank}: {array.shape}" for rank, array in zip(self.keys(), arrays, strict=True))
            raise ValueError(f"the ranks' values have different shapes ({shapes}): take one rank's, as in name[0]")
        return np.asarray(np.stack(arrays), dtype=dtype) if arrays else np.empty(0, dtype=dtype)

    def __repr__(self) -> str:
        shown = merge({rank: [repr(value)] for rank, value in self._values.items()})
        return "\n".join(labelled(ranks, text) for ranks, text in shown)


class CellResult(PerRank):
    """Result of a cell, for ``-o name``: the ranks' last expressions, and what they printed."""

    def __init__(self, values: Mapping[int, Any], stdout: Mapping[int, str], stderr: Mapping[int, str]) -> None:
        super().__init__(values)
        self.stdout = dict(stdout)
        self.stderr = dict(stderr)
