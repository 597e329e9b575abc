"""Data modules: Horovod's interface for readers of one's own, and the default, which reads parquet.

A rank opens it as a context manager. ``train_data()`` and ``val_data()`` give batches, of which the first
``steps_per_epoch_train`` and ``steps_per_epoch_val`` are an epoch's, the next ones the next epoch's.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - the others need what it looks for
from hvd_kernel.spark.common.data.reader import BatchReader, Source

NO_SHORT_NAME = '{} cannot be registered without a name: set its attribute short_name, e.g. short_name = "mine".'
_known: dict[str, type[DataModule]] = {}


class DataModule(ABC):
    """Gives batches of one rank's share.

    Parameters
    ----------
    train_dir, val_dir
        Folders of parquet files, with their scheme.
    num_train_epochs, has_val, train_batch_size, val_batch_size, transform_fn, inmemory_cache_all
        As the estimator was told.
    shuffle, shuffle_size
        Whether rows are shuffled, and how many among each other; None: the module's choice.
    cur_shard, shard_count
        This rank, and how many there are.
    schema_fields
        Columns: features, labels, and that of the weights.
    storage_options
        Of the store.
    steps_per_epoch_train, steps_per_epoch_val
        Batches of an epoch.
    **kwargs
        What else there may be.
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

    def __exit__(  # noqa: B027 - a module with nothing to close needs none
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""

    @abstractmethod
    def train_data(self) -> Any:
        """Return batches to train on, in the form that the framework takes."""

    @abstractmethod
    def val_data(self) -> Any:
        """Return batches to validate on."""

    @classmethod
    def register(cls) -> None:
        """Let ``datamodule_from_name`` find it by its short name.

        Raises
        ------
        ValueError
            It has none.
        """
        if not cls.short_name:
            raise ValueError(NO_SHORT_NAME.format(cls.__name__))
        _known[cls.short_name] = cls


class ParquetDataModule(DataModule):
    """Batches of the row groups that are a rank's share, as arrays of NumPy by name; see ``data.reader``.

    ``train_source``, ``val_source``: the data sets, as the driver has listed them; ``seed``: of the order.
    """

    short_name = "parquet"

    def train_reader(self) -> BatchReader:
        """Return this rank's share to train on."""
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
        """Return this rank's share to validate on; unless they are even, no row is in two of them."""
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
        """Return batches without an end."""
        return self.train_reader().endless()

    def val_data(self) -> Any:
        """Return the batches of one validation."""
        return self.val_reader().epoch(0)

    def _source(self, which: str) -> Source:
        source: Source = self.more[which]
        return source


def datamodule_from_name(name: str) -> type[DataModule]:
    """Return the module that has registered this short name, else the class at this dotted path.

    Raises
    ------
    ImportError
        There is neither.
    """
    if name in _known:
        return _known[name]
    module, _, kind = name.rpartition(".")
    try:
        found: type[DataModule] = getattr(importlib.import_module(module), kind)
    except (ImportError, ValueError, AttributeError) as error:
        raise ImportError(f"data_module={name!r} is neither registered nor the path of a class, a.b.Class.") from error
    return found


ParquetDataModule.register()
