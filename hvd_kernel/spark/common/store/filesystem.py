"""Stores on the filesystems of fsspec: this machine, S3, Google's, Azure's, and what else has a scheme there."""

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
    """A prefix of one filesystem.

    Parameters
    ----------
    prefix_path
        What all other paths begin with, where they are not given.
    train_path, val_path, test_path, runs_path
        Other places for data and runs.
    save_runs
        Whether checkpoints and logs are kept.
    storage_options
        Of fsspec's filesystem: key, secret, endpoint_url ... They are stored with estimators that are saved: leave
        secrets to the environment.
    checkpoint_filename
        A checkpoint's name.
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
        self._given: dict[str, Any] = {
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
        """Return where rows to train on are."""
        return self._data("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return where rows to validate on are."""
        return self._data("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return where rows to test on are."""
        return self._data("test", idx)

    def get_runs_path(self) -> str:
        """Return the folder of all runs."""
        given: str | None = self._given["runs_path"]
        return self.get_full_path(given) if given else f"{self.prefix_path}/{RUNS}"

    def saving_runs(self) -> bool:
        """Tell whether checkpoints and logs are kept."""
        return bool(self._given["save_runs"])

    def get_checkpoint_filename(self) -> str:
        """Return a checkpoint's name in its run's folder."""
        return str(self._given["checkpoint_filename"] or CHECKPOINT)

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme."""
        return path if "://" in path else f"{self.scheme}{path}"

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or a folder."""
        return bool(self.fs.exists(self.inside(path)))

    def read(self, path: str) -> bytes:
        """Return what a file holds."""
        return bytes(self.fs.cat_file(self.inside(path)))

    def write(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all; folders are made."""
        place = self.inside(path)
        self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        if not self._renames():
            self.fs.pipe_file(place, data)  # such stores show an object when all of it is there
            return
        part = f"{place}.part"
        self.fs.pipe_file(part, data)
        self.fs.mv(part, place)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return what makes a folder on this machine for a run's files while a context lasts."""
        return partial(_temporary, run_id)

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return what copies such a folder's new files into the store."""
        return _Sync(self, run_id)

    def description(self) -> dict[str, Any]:
        """Return the arguments that make it again."""
        return {name: value for name, value in self._given.items() if value is not None}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "fs"}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other).get("_given") == self._given

    def __hash__(self) -> int:
        return hash((type(self), self.prefix_path))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix_path!r})"

    def _data(self, which: str, idx: int | None) -> str:
        given: str | None = self._given[f"{which}_path"]
        path = self.get_full_path(given) if given else f"{self.prefix_path}/intermediate_{which}_data"
        return path if idx is None else f"{path}.{idx}"

    def _renames(self) -> bool:
        """Tell whether files are written under another name first."""
        return True


class FilesystemStore(AbstractFilesystemStore):
    """A prefix of any filesystem that fsspec has a package for; parameters as of ``AbstractFilesystemStore``.

    Raises
    ------
    ConfigError
        No filesystem has this scheme, or its package is not installed.
    """

    scheme = _LOCAL

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prefix_path, *args, **kwargs)
        _ = self.fs  # a scheme that nobody knows is told here

    @classmethod
    def matches(cls, path: str) -> bool:
        """Tell that it takes what no other kind does."""
        del path
        return True

    @cached_property
    def fs(self) -> Any:
        """The filesystem, of fsspec."""
        import fsspec  # noqa: PLC0415 - of the extra `spark`

        scheme = self.prefix_path.partition("://")[0]
        options = dict(self._given["storage_options"])
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
        """Return a path as the filesystem takes it."""
        return str(self.fs._strip_protocol(path))  # noqa: SLF001 - fsspec's own way, which derived classes override

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme; one of this machine is made absolute."""
        if "://" in path:
            return path
        return f"{_LOCAL}{Path(path).absolute()}"

    def spark_path(self, path: str) -> str:
        """Return a path as Spark's own filesystems take it: s3a:// where fsspec says s3://."""
        full = self.get_full_path(path)
        for scheme, other in _FOR_SPARK.items():
            if full.startswith(scheme):
                return other + full.removeprefix(scheme)
        return full

    def _renames(self) -> bool:
        return self.prefix_path.startswith(_LOCAL)


class LocalStore(FilesystemStore):
    """A folder that driver and executors share: of one machine, or mounted on all."""


@contextmanager
def _temporary(run_id: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=f"hvd-{run_id}-") as folder:
        yield folder


class _Sync:
    """Copies files that are newer than when they were last copied."""

    def __init__(self, store: AbstractFilesystemStore, run_id: str) -> None:
        self._store, self._run = store, store.get_run_path(run_id)
        self._seen: dict[str, int] = {}

    def __call__(self, folder: str) -> None:
        for file in sorted(Path(folder).rglob("*")):
            name = str(file.relative_to(folder))
            if not file.is_file() or self._seen.get(name) == (changed := file.stat().st_mtime_ns):
                continue
            self._store.write(f"{self._run}/{name}", file.read_bytes())
            self._seen[name] = changed
