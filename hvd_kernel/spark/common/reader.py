"""Reader of a rank's share of parquet files: its rows as batches of arrays.

A thread reads the rows ahead and shuffles them within a window. Which rows are a rank's: shares.py.

Terms.
  batch   columns by name, each an array of rows x the column's shape
  window  rows in memory that are shuffled together
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from hvd_kernel.data.prefetch import Prefetch
from hvd_kernel.spark.common.columns import Column, as_lists, dense, holds_vectors, values, whole
from hvd_kernel.spark.common.store import Store
from hvd_kernel.spark.shares import Piece, RowGroup, share, steps

Batch = dict[str, npt.NDArray[Any]]
Held = dict[str, Any]
"""Rows in memory, like a batch, except that sparse vectors remain sparse (an array of pyarrow)."""

_AHEAD = 4
_WINDOW_BYTES = 256 << 20


@dataclass(frozen=True)
class Source:
    """A data set in a store: its row groups, and the columns to read."""

    store: Store
    groups: tuple[RowGroup, ...]
    columns: Mapping[str, Column]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(group.rows for group in self.groups)


class BatchReader:
    """Reads a rank's share of a source in batches.

    Parameters
    ----------
    source
        The data set.
    rank, size
        Rank and number of ranks.
    batch_size
        Number of rows in a batch; the last batch of an epoch may be smaller.
    shuffle
        Whether the order changes from epoch to epoch.
    even
        See ``shares.share``.
    seed
        Seed of the order, the same on all ranks.
    window
        Number of rows that are shuffled together; None: as many as fit in 256 MiB.
    transform
        Function that receives parts of the rows as a pandas DataFrame, and returns the rows to use.
    keep
        Keep the share in memory after the first epoch; all epochs have the same share.
    """

    def __init__(
        self,
        source: Source,
        rank: int,
        size: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        even: bool = True,
        seed: int = 0,
        window: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        keep: bool = False,
    ) -> None:
        self.steps = steps(source.rows, size, batch_size)
        self._source, self._rank, self._size, self._batch_size = source, rank, size, batch_size
        self._shuffle, self._even, self._seed, self._transform = shuffle, even, seed, transform
        self._most = _window(source, made_dense=transform is not None)
        self._window = window or self._most
        self._kept: list[Held] | None = None
        self._keep = keep

    def epoch(self, number: int) -> Iterator[Batch]:
        """Iterate over the batches of an epoch; a thread reads ahead."""
        return Prefetch(lambda: self._batches(number), _AHEAD).items()

    def endless(self) -> Iterator[Batch]:
        """Iterate over the batches of all epochs, without end."""
        number = 0
        while True:
            yield from self.epoch(number)
            number += 1

    def _batches(self, number: int) -> Iterator[Batch]:
        generator = np.random.default_rng((self._seed, number, self._rank)) if self._shuffle else None
        held: list[Held] = []
        rows = 0
        for part in self._parts(number):
            held.append(part)
            rows += _length(part)
            if rows >= max(self._window, self._batch_size):
                rest = yield from self._cut(_joined(held, generator))
                held, rows = [rest], _length(rest)
        if rows:
            rest = yield from self._cut(_joined(held, generator))
            if _length(rest):
                yield self._batch(rest)

    def _cut(self, rows: Held) -> Generator[Batch, None, Held]:
        """Yield complete batches; return the remaining rows."""
        whole = _length(rows) - _length(rows) % self._batch_size
        for start in range(0, whole, self._batch_size):
            yield self._batch({name: column[start : start + self._batch_size] for name, column in rows.items()})
        return {name: column[whole:] for name, column in rows.items()}

    def _batch(self, rows: Held) -> Batch:
        """Return rows as arrays, and sparse vectors as dense ones."""
        return {
            name: dense(column, name, self._length_of(name)) if isinstance(column, pa.Array) else column
            for name, column in rows.items()
        }

    def _length_of(self, name: str) -> int:
        shape = self._source.columns[name].shape
        if not shape:
            raise ValueError(f"Column {name}: its vectors differ in length.")
        return shape[0]

    def _parts(self, number: int) -> Iterator[Held]:
        if self._kept is not None:
            yield from self._kept
            return
        order = self._seed + (0 if self._keep else number) if self._shuffle else None
        pieces = share(self._source.groups, self._rank, self._size, order=order, even=self._even)
        kept = []
        for piece in pieces:
            for part in self._read(piece):
                if self._keep:
                    kept.append(part)
                yield part
        if self._keep:
            self._kept = kept

    def _read(self, piece: Piece) -> Iterator[Held]:
        store, columns = self._source.store, self._source.columns
        with store.fs.open(piece.group.path, "rb") as file:
            table = ParquetFile(file).read_row_group(piece.group.index, columns=list(columns))
        table = table.slice(piece.start, piece.stop - piece.start)
        if self._transform is None:
            yield {name: _held(table[name], column) for name, column in columns.items()}
            return
        for start in range(0, table.num_rows, self._most):
            yield self._transformed(table.slice(start, self._most))

    def _transformed(self, table: pa.Table) -> Batch:
        assert self._transform is not None
        for position, name in enumerate(table.column_names):
            if holds_vectors(table[name].type):
                table = table.set_column(position, name, as_lists(whole(table[name]), name, self._length_of(name)))
        frame = self._transform(table.to_pandas())
        return {str(name): _stacked(frame[name].to_numpy()) for name in frame.columns}


def source_of(store: Store, path: str, columns: Mapping[str, Column]) -> Source:
    """Return the data set of a path.

    Raises
    ------
    ValueError
        The data set has no rows.
    """
    groups = tuple(row_groups(store, path))
    if not groups:
        raise ValueError(f"There are no rows in {path}.")
    return Source(store, groups, columns)


def row_groups(store: Store, path: str) -> Iterator[RowGroup]:
    """Yield the row groups of a folder's parquet files that are not empty, in the order of file names."""
    for file in files(store, path):
        with store.fs.open(file, "rb") as opened:
            metadata = ParquetFile(opened).metadata
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            if group.num_rows:
                yield RowGroup(file, index, group.num_rows, group.total_byte_size)


def files(store: Store, path: str) -> Sequence[str]:
    """Return a folder's parquet files, except those with names that start with _ or a dot."""
    paths = sorted(store.fs.find(store.inside(path)))
    return [file for file in paths if file.endswith(".parquet") and file.rpartition("/")[2][0] not in "_."]


def _window(source: Source, *, made_dense: bool) -> int:
    """Return the maximum number of rows in memory; ``made_dense`` counts the zeros of sparse vectors."""
    rows, size = source.rows, sum(group.size for group in source.groups)
    if made_dense:
        widths = [column.shape[0] for column in source.columns.values() if column.kind == "sparse" and column.shape]
        size = max(size, rows * sum(widths) * np.dtype(np.float64).itemsize)
    return max(1, min(rows, rows * _WINDOW_BYTES // max(size, 1)))


def _held(column: pa.ChunkedArray, description: Column) -> Any:
    return whole(column) if holds_vectors(column.type) else values(column, description.name, description.shape)


def _joined(parts: Sequence[Held], generator: np.random.Generator | None) -> Held:
    names = parts[0].keys()
    order = None if generator is None else generator.permutation(sum(map(_length, parts)))
    joined = {name: _concatenate([part[name] for part in parts]) for name in names}
    return joined if order is None else {name: _in_order(column, order) for name, column in joined.items()}


def _concatenate(columns: Sequence[Any]) -> Any:
    return pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)


def _in_order(column: Any, order: npt.NDArray[Any]) -> Any:
    return column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]


def _length(rows: Held) -> int:
    return len(next(iter(rows.values())))


def _stacked(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of rows that are arrays or lists as a single array."""
    if column.dtype == object and len(column) and isinstance(column[0], np.ndarray | list):
        return np.stack([np.asarray(row) for row in column])
    return column if column.flags.writeable else column.copy()
