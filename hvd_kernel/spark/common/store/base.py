"""What a store is: paths of data and runs below one prefix, and files that can be read and written there.

::

    PREFIX/intermediate_train_data.IDX     parquet, with _hvd_columns.json beside the files
    PREFIX/intermediate_val_data.IDX
    PREFIX/runs/RUN_ID/checkpoint          the last epoch's; checkpoint.best where it is asked for
    PREFIX/runs/RUN_ID/logs/

A store can be pickled; what connects it is made again where it is used. Nothing in it is a pickle: tables are parquet,
what they hold is told by JSON, checkpoints are read without running code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, ClassVar

CHECKPOINT, LOGS, RUNS = "checkpoint", "logs", "runs"


class Store:
    """Paths and files of one prefix; ``Store.create(prefix)`` makes the kind that the prefix asks for.

    A class that derives from it and has ``matches`` of its own is asked by ``create`` from then on, before older ones.
    """

    _kinds: ClassVar[list[type[Store]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "matches" in vars(cls):
            Store._kinds.append(cls)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Tell whether a path is one of this kind."""
        raise NotImplementedError

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Return the store of a prefix.

        Parameters
        ----------
        prefix_path
            ``hdfs://HOST:PORT/path``, ``s3://bucket/path``, ``gs://``, ``abfs://`` and what else fsspec knows, a path
            of this machine, ``file:///path``; on Databricks ``dbfs:/path`` and ``/dbfs/path``.
        *args, **kwargs
            Of the kind: train_path, val_path, test_path, runs_path, save_runs, storage_options, checkpoint_filename.

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
        found: Store = kind(prefix_path, *args, **kwargs)
        return found

    # Paths. ``idx`` is the number of a data set, None: that which the user has put there.

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return where rows to train on are."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return where rows to validate on are."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return where rows to test on are."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """Return the folder of all runs."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """Tell whether checkpoints and logs are kept."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """Return a run's folder."""
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Return the folder of a run's checkpoints; None where runs are not saved."""
        return self.get_run_path(run_id) if self.saving_runs() else None

    def get_checkpoint_filename(self) -> str:
        """Return a checkpoint's name in that folder."""
        return CHECKPOINT

    def get_logs_path(self, run_id: str) -> str | None:
        """Return the folder of a run's logs; None where runs are not saved."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self.saving_runs() else None

    def get_logs_subdir(self) -> str:
        """Return the name of a folder of logs."""
        return LOGS

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme."""
        raise NotImplementedError

    def spark_path(self, path: str) -> str:
        """Return a path as Spark's own filesystems take it."""
        return self.get_full_path(path)

    # Files.

    @property
    def fs(self) -> Any:
        """The filesystem, of fsspec."""
        raise NotImplementedError

    def inside(self, path: str) -> str:
        """Return a path as the filesystem takes it."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or a folder."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Return what a file holds."""
        raise NotImplementedError

    def write(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all; folders are made."""
        raise NotImplementedError

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return what makes a folder on this machine for a run's files while a context lasts."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return what copies such a folder's new files into the store."""
        raise NotImplementedError

    def description(self) -> dict[str, Any]:
        """Return the arguments that make it again, as they are stored beside an estimator."""
        raise NotImplementedError

    # What Horovod's training functions take.

    def write_text(self, path: str, text: str) -> None:
        """Write a text as UTF-8."""
        self.write(path, text.encode())

    def get_full_path_fn(self) -> Callable[[str], str]:
        """Return ``get_full_path`` as a function."""
        return self.get_full_path

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> SimpleNamespace:
        """Return paths and functions of one run, as an object that can be sent to ranks."""
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
