"""Stores on the filesystems of fsspec: local, S3, Google Cloud Storage, Azure, and other schemes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.spark.common.store.base import CHECKPOINT, RUNS, Store

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
