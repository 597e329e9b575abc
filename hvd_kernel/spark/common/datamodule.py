"""Data modules: Horovod's interface for custom readers, and the default, which reads parquet files.

A rank uses a data module as a context manager. ``train_data()`` and ``val_data()`` return iterables of batches; an
epoch consists of the next ``steps_per_epoch_train`` or ``steps_per_epoch_val`` batches.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.spark.common.reader import BatchReader, Source

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
