"""Interface of a store: paths of data and runs below a prefix, and access to files.

::

    PREFIX/intermediate_train_data.IDX     parquet, with _hvd_columns.json beside the files
    PREFIX/intermediate_val_data.IDX
    PREFIX/runs/RUN_ID/checkpoint          of the last epoch; checkpoint.best if it is enabled
    PREFIX/runs/RUN_ID/logs/

A store can be pickled; its connection is created on first use. Its files contain no pickles: tables are parquet, their
descriptions JSON, and checkpoints are read without running code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, ClassVar

CHECKPOINT, LOGS, RUNS = "checkpoint", "logs", "runs"


class Store:
    """Paths and files below a prefix; ``Store.create(prefix)`` selects the class by the prefix.

    A subclass that implements ``matches`` is registered for ``create``, with priority over earlier classes.
    """

    _kinds: ClassVar[list[type[Store]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "matches" in vars(cls):
            Store._kinds.append(cls)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether this class supports a path."""
        raise NotImplementedError

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Return the store of a prefix.

        Parameters
        ----------
        prefix_path
            ``hdfs://HOST:PORT/path``, ``s3://bucket/path``, ``gs://``, ``abfs://`` and other schemes of fsspec, a local
            path, ``file:///path``; on Databricks ``dbfs:/path`` and ``/dbfs/path``.
        *args, **kwargs
            Arguments of the class: train_path, val_path, test_path, runs_path, save_runs, storage_options,
            checkpoint_filename.

        Raises
        ------
        ConfigError
            No filesystem has this scheme.

        Examples
        --------
        ::

            store = Store.create("s3://bucket/experiments", storage_options={"anon": False})
        """
        kind: Any = next(kind for kind in reversed(Store._kinds) if kind.matches(prefix_path))
        store: Store = kind(prefix_path, *args, **kwargs)
        return store

    # Paths. ``idx`` is the number of a data set; None: written by the user.

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the path of the training data."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the path of the validation data."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the path of the test data."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """Return the folder of all runs."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are stored."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """Return a run's folder."""
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Return the folder of a run's checkpoints; None if runs are not saved."""
        return self.get_run_path(run_id) if self.saving_runs() else None

    def get_checkpoint_filename(self) -> str:
        """Return the file name of a checkpoint."""
        return CHECKPOINT

    def get_logs_path(self, run_id: str) -> str | None:
        """Return the folder of a run's logs; None if runs are not saved."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self.saving_runs() else None

    def get_logs_subdir(self) -> str:
        """Return the name of a run's folder of logs."""
        return LOGS

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme."""
        raise NotImplementedError

    def spark_path(self, path: str) -> str:
        """Return a path for Spark's filesystems."""
        return self.get_full_path(path)

    # Files.

    @property
    def fs(self) -> Any:
        """The filesystem of fsspec."""
        raise NotImplementedError

    def inside(self, path: str) -> str:
        """Return a path for the filesystem of fsspec."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""
        raise NotImplementedError

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically; create missing folders."""
        raise NotImplementedError

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return a context manager for a temporary local folder for a run's files."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that copies new files from a local folder to the store."""
        raise NotImplementedError

    def description(self) -> dict[str, Any]:
        """Return the arguments of the constructor, which are saved with an estimator."""
        raise NotImplementedError

    # Interface for Horovod's training functions.

    def write_text(self, path: str, text: str) -> None:
        """Write a text as UTF-8."""
        self.write(path, text.encode())

    def get_full_path_fn(self) -> Callable[[str], str]:
        """Return ``get_full_path`` as a function."""
        return self.get_full_path

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> SimpleNamespace:
        """Return the paths and functions of a run as a picklable object for ranks."""
        return SimpleNamespace(
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            get_full_path=self.get_full_path_fn(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )
