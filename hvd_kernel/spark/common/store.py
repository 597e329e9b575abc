"""Stores of an estimator's data and runs, with Horovod's names and paths.

::

    PREFIX/intermediate_train_data.IDX     parquet, with _hvd_columns.json beside the files
    PREFIX/intermediate_val_data.IDX
    PREFIX/runs/RUN_ID/checkpoint          of the last epoch; checkpoint.best if it is enabled
    PREFIX/runs/RUN_ID/logs/

Filesystems are those of fsspec (local, S3, Google Cloud Storage, Azure, and other schemes), HDFS through pyarrow's
libhdfs, and Databricks' filesystem, which its machines mount at /dbfs.

A store can be pickled; its connection is created on first use. Its files contain no pickles: tables are parquet, their
descriptions JSON, and checkpoints are read without running code.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from hvd_kernel.errors import ConfigError

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


_LOCAL = "file://"
_FOR_SPARK = {"s3://": "s3a://", "s3n://": "s3a://", "gcs://": "gs://"}
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}


class AbstractFilesystemStore(Store):
    """A prefix on a filesystem.

    Parameters
    ----------
    prefix_path
        Prefix of all paths that are not set explicitly.
    train_path, val_path, test_path, runs_path
        Paths of data and runs, instead of those below the prefix.
    save_runs
        Whether checkpoints and logs are stored.
    storage_options
        Options of the fsspec filesystem: key, secret, endpoint_url ... They are saved with estimators: set secrets in
        the environment instead.
    checkpoint_filename
        File name of a checkpoint.
    """

    scheme = ""

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "prefix_path": prefix_path,
            "train_path": train_path,
            "val_path": val_path,
            "test_path": test_path,
            "runs_path": runs_path,
            "save_runs": save_runs,
            "storage_options": dict(storage_options or {}),
            "checkpoint_filename": checkpoint_filename,
        }
        self.prefix_path = self.get_full_path(prefix_path).rstrip("/")

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the path of the training data."""
        return self._data("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the path of the validation data."""
        return self._data("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the path of the test data."""
        return self._data("test", idx)

    def get_runs_path(self) -> str:
        """Return the folder of all runs."""
        path: str | None = self._arguments["runs_path"]
        return self.get_full_path(path) if path else f"{self.prefix_path}/{RUNS}"

    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are stored."""
        return bool(self._arguments["save_runs"])

    def get_checkpoint_filename(self) -> str:
        """Return the file name of a checkpoint."""
        return str(self._arguments["checkpoint_filename"] or CHECKPOINT)

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme."""
        return path if "://" in path else f"{self.scheme}{path}"

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self.fs.exists(self.inside(path)))

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""
        return bytes(self.fs.cat_file(self.inside(path)))

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically; create missing folders."""
        place = self.inside(path)
        self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        if not self._renames():
            self.fs.pipe_file(place, data)  # object stores create an object only once it is complete
            return
        part = f"{place}.part"
        self.fs.pipe_file(part, data)
        self.fs.mv(part, place)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return a context manager for a temporary local folder for a run's files."""
        return partial(_temporary, run_id)

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that copies new files from a local folder to the store."""
        return _Sync(self, run_id)

    def description(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {name: value for name, value in self._arguments.items() if value is not None}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "fs"}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other).get("_arguments") == self._arguments

    def __hash__(self) -> int:
        return hash((type(self), self.prefix_path))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix_path!r})"

    def _data(self, which: str, idx: int | None) -> str:
        explicit: str | None = self._arguments[f"{which}_path"]
        path = self.get_full_path(explicit) if explicit else f"{self.prefix_path}/intermediate_{which}_data"
        return path if idx is None else f"{path}.{idx}"

    def _renames(self) -> bool:
        """Return whether files are first written under a temporary name."""
        return True


class FilesystemStore(AbstractFilesystemStore):
    """A prefix on any filesystem of fsspec; for the parameters see ``AbstractFilesystemStore``.

    Raises
    ------
    ConfigError
        No filesystem has this scheme, or its package is not installed.
    """

    scheme = _LOCAL

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prefix_path, *args, **kwargs)
        _ = self.fs  # raises an error for an unknown scheme

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return True: this class is the fallback."""
        del path
        return True

    @cached_property
    def fs(self) -> Any:
        """The filesystem of fsspec."""
        import fsspec  # noqa: PLC0415 - of the extra `spark`

        scheme = self.prefix_path.partition("://")[0]
        options = dict(self._arguments["storage_options"])
        if scheme == "file":
            options.setdefault("auto_mkdir", True)
        try:
            return fsspec.filesystem(scheme, **options)
        except (ImportError, ValueError) as error:
            package = _PACKAGES.get(scheme)
            remedy = f"pip install {package}" if package else "name one of fsspec.available_protocols()"
            raise ConfigError(
                f"Store {self.prefix_path}: no filesystem for {scheme}://: {error}. Remedy: {remedy}."
            ) from error

    def inside(self, path: str) -> str:
        """Return a path for the filesystem of fsspec."""
        return str(self.fs._strip_protocol(path))  # noqa: SLF001 - fsspec's hook for subclasses

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme; make a local path absolute."""
        if "://" in path:
            return path
        return f"{_LOCAL}{Path(path).absolute()}"

    def spark_path(self, path: str) -> str:
        """Return a path for Spark's filesystems: s3a:// instead of s3://."""
        full = self.get_full_path(path)
        for scheme, other in _FOR_SPARK.items():
            if full.startswith(scheme):
                return other + full.removeprefix(scheme)
        return full

    def _renames(self) -> bool:
        return self.prefix_path.startswith(_LOCAL)


class LocalStore(FilesystemStore):
    """A folder shared by driver and executors, on a single machine or mounted on all."""


@contextmanager
def _temporary(run_id: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=f"hvd-{run_id}-") as folder:
        yield folder


class _Sync:
    """Copies files that have changed since the previous copy."""

    def __init__(self, store: AbstractFilesystemStore, run_id: str) -> None:
        self._store, self._run = store, store.get_run_path(run_id)
        self._copied: dict[str, int] = {}

    def __call__(self, folder: str) -> None:
        for file in sorted(Path(folder).rglob("*")):
            name = str(file.relative_to(folder))
            if not file.is_file() or self._copied.get(name) == (changed := file.stat().st_mtime_ns):
                continue
            self._store.write(f"{self._run}/{name}", file.read_bytes())
            self._copied[name] = changed


_DBFS_SCHEME, _FOLDER = "dbfs:/", "/dbfs/"


class DBFSLocalStore(LocalStore):
    """A folder of DBFS: ``dbfs:/path``, ``dbfs:///path``, ``/dbfs/path`` or ``file:///dbfs/path``.

    Ranks access files through the mount, Spark through its scheme. For the parameters see ``AbstractFilesystemStore``.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(mounted(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path is on DBFS, which exists on Databricks only."""
        return "DATABRICKS_RUNTIME_VERSION" in os.environ and mounted(path).startswith(_FOLDER)

    def spark_path(self, path: str) -> str:
        """Return ``dbfs:/path``."""
        return _DBFS_SCHEME + self.inside(path).removeprefix(_FOLDER)

    def get_checkpoint_filename(self) -> str:
        """Return the file name of a checkpoint, by default Horovod's for this store."""
        return str(self._arguments["checkpoint_filename"] or "checkpoint.tf")


def mounted(path: str) -> str:
    """Return the mounted path for a path on DBFS; other paths unchanged."""
    if path.startswith(_DBFS_SCHEME):
        return _FOLDER + path.removeprefix(_DBFS_SCHEME).lstrip("/")
    return path.removeprefix("file://")


_HDFS_SCHEME = "hdfs://"


class HDFSStore(AbstractFilesystemStore):
    """A prefix on HDFS. Driver and executors need libhdfs (``ARROW_LIBHDFS_DIR``, ``CLASSPATH``).

    Parameters
    ----------
    prefix_path
        ``hdfs://HOST:PORT/path``; with ``hdfs:///path`` or a path only, the host of ``fs.defaultFS``.
    host, port
        Host and port, if the prefix has none.
    user, kerb_ticket, extra_conf
        See ``pyarrow.fs.HadoopFileSystem``.
    driver, temp_dir
        No effect.
    *args, **kwargs
        See ``AbstractFilesystemStore``.
    """

    scheme = _HDFS_SCHEME

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        temp_dir: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        del driver, temp_dir
        super().__init__(prefix_path, *args, **kwargs)
        parts = urlsplit(self.prefix_path)
        self._connection = {
            "host": host or parts.hostname or "default",
            "port": port or parts.port or 0,
            "user": user,
            "kerb_ticket": kerb_ticket,
            "extra_conf": dict(extra_conf or {}) or None,
        }

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path is on HDFS."""
        return path.startswith(_HDFS_SCHEME)

    @cached_property
    def fs(self) -> Any:
        """The filesystem of pyarrow, with fsspec's interface."""
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415 - of the extra `spark`
        from pyarrow.fs import HadoopFileSystem  # noqa: PLC0415 - as above

        return ArrowFSWrapper(HadoopFileSystem(**self._connection))

    def inside(self, path: str) -> str:
        """Return the path on its host."""
        return urlsplit(self.get_full_path(path)).path

    def description(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return super().description() | {name: value for name, value in self._connection.items() if value}
