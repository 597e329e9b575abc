"""Stores on Databricks' filesystem, which Databricks machines mount at /dbfs."""

from __future__ import annotations

import os
from typing import Any

from hvd_kernel.spark.common.store.filesystem import LocalStore

_SCHEME, _FOLDER = "dbfs:/", "/dbfs/"


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
        return _SCHEME + self.inside(path).removeprefix(_FOLDER)

    def get_checkpoint_filename(self) -> str:
        """Return the file name of a checkpoint, by default Horovod's for this store."""
        return str(self._arguments["checkpoint_filename"] or "checkpoint.tf")


def mounted(path: str) -> str:
    """Return the mounted path for a path on DBFS; other paths unchanged."""
    if path.startswith(_SCHEME):
        return _FOLDER + path.removeprefix(_SCHEME).lstrip("/")
    return path.removeprefix("file://")
