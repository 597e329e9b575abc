"""Data modules: Horovod's interface for custom readers, and the default, which reads parquet files.

A rank uses a data module as a context manager. ``train_data()`` and ``val_data()`` return iterables of batches; an
epoch consists of the next ``steps_per_epoch_train`` or ``steps_per_epoch_val`` batches.

The default reads a rank's share of the rows: a thread reads them ahead and shuffles them within a window. Which rows
are a rank's: shares.py.

Terms.
  batch   columns by name, each an array of rows x the column's shape
  window  rows in memory that are shuffled together
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.parquet import ParquetFile

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.data.prefetch import Prefetch
from hvd_kernel.spark.common.columns import Column, as_lists, dense, holds_vectors, values, whole
from hvd_kernel.spark.common.store import Store
from hvd_kernel.spark.shares import Piece, RowGroup, share, steps

NO_SHORT_NAME = '{} cannot be registered without a name: set its attribute short_name, e.g. short_name = "mine".'
_registered: dict[str, type[DataModule]] = {}


class DataModule(ABC):
    """Reads a rank's share of the rows in batches.

    Parameters
    ----------
    train_dir, val_dir
        Folders of parquet files, with their scheme.
    num_train_epochs, has_val, train_batch_size, val_batch_size, transform_fn, inmemory_cache_all
        Params of the estimator.
    shuffle, shuffle_size
        Whether rows are shuffled, and how many together; None: the module's default.
    cur_shard, shard_count
        Rank and number of ranks.
    schema_fields
        Names of the columns: features, labels, and sample weights.
    storage_options
        Options of the store.
    steps_per_epoch_train, steps_per_epoch_val
        Number of batches in an epoch.
    **kwargs
        Other options.
    """

    short_name: str | None = None

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle_size: int | None = None,
        transform_fn: Any = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        shuffle: bool = True,
        **kwargs: Any,
    ) -> None:
        self.train_dir, self.val_dir = train_dir, val_dir
        self.num_train_epochs, self.has_val = num_train_epochs, has_val
        self.train_batch_size, self.val_batch_size = train_batch_size, val_batch_size
        self.shuffle, self.shuffle_size = shuffle, shuffle_size
        self.transform_fn, self.inmemory_cache_all = transform_fn, inmemory_cache_all
        self.cur_shard, self.shard_count = cur_shard, shard_count
        self.schema_fields, self.storage_options = schema_fields, storage_options
        self.steps_per_epoch_train, self.steps_per_epoch_val = steps_per_epoch_train, steps_per_epoch_val
        self.verbose = verbose
        self.more = kwargs

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027 - optional to override
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close open files."""

    @abstractmethod
    def train_data(self) -> Any:
        """Return batches for training, in the framework's format."""

    @abstractmethod
    def val_data(self) -> Any:
        """Return batches for validation."""

    @classmethod
    def register(cls) -> None:
        """Register this class under its short name for ``datamodule_from_name``.

        Raises
        ------
        ValueError
            The class has no short name.
        """
        if not cls.short_name:
            raise ValueError(NO_SHORT_NAME.format(cls.__name__))
        _registered[cls.short_name] = cls


class ParquetDataModule(DataModule):
    """Reads a rank's share of parquet row groups as NumPy arrays by name; see ``data.reader``.

    Other options: ``train_source`` and ``val_source``, the data sets listed by the driver; ``seed`` of the order.
    """

    short_name = "parquet"

    def train_reader(self) -> BatchReader:
        """Return a reader of this rank's share for training."""
        return BatchReader(
            self._source("train_source"),
            self.cur_shard,
            self.shard_count,
            self.train_batch_size,
            shuffle=self.shuffle,
            seed=self.more.get("seed") or 0,
            window=self.shuffle_size,
            transform=self.transform_fn,
            keep=self.inmemory_cache_all,
        )

    def val_reader(self, *, even: bool = False) -> BatchReader:
        """Return a reader of this rank's share for validation; only even shares may have rows in common."""
        return BatchReader(
            self._source("val_source"),
            self.cur_shard,
            self.shard_count,
            self.val_batch_size,
            even=even,
            transform=self.transform_fn,
            keep=self.inmemory_cache_all,
        )

    def train_data(self) -> Any:
        """Return an endless iterator over the batches of all epochs."""
        return self.train_reader().endless()

    def val_data(self) -> Any:
        """Return an iterator over the batches of a validation."""
        return self.val_reader().epoch(0)

    def _source(self, which: str) -> Source:
        source: Source = self.more[which]
        return source


def datamodule_from_name(name: str) -> type[DataModule]:
    """Return the data module registered under a short name, or the class at a dotted path.

    Raises
    ------
    ImportError
        The name is not registered, and no class has this path.
    """
    if name in _registered:
        return _registered[name]
    module, _, class_name = name.rpartition(".")
    try:
        cls: type[DataModule] = getattr(importlib.import_module(module), class_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ImportError(f"data_module={name!r} is neither registered nor the path of a class, a.b.Class.") from error
    return cls


ParquetDataModule.register()


Batch = dict[str, npt.NDArray[Any]]
Held = dict[str, Any]
"""Rows in memory, like a batch, except that sparse vectors remain sparse (an array of pyarrow)."""

# The reader of parquet files


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
