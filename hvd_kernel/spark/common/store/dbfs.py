"""Stores on Databricks' filesystem, which is mounted at /dbfs on its machines."""

from __future__ import annotations

import os
from typing import Any

from hvd_kernel.spark.common.store.filesystem import LocalStore

_SCHEME, _FOLDER = "dbfs:/", "/dbfs/"


class DBFSLocalStore(LocalStore):
    """A folder of DBFS: ``dbfs:/path``, ``dbfs:///path``, ``/dbfs/path`` or ``file:///dbfs/path``.

    Ranks use its files through the mount, Spark by its own scheme. Parameters as of ``AbstractFilesystemStore``.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(mounted(prefix_path), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Tell whether a path is one of DBFS: it is on Databricks alone."""
        return "DATABRICKS_RUNTIME_VERSION" in os.environ and mounted(path).startswith(_FOLDER)

    def spark_path(self, path: str) -> str:
        """Return ``dbfs:/path``."""
        return _SCHEME + self.inside(path).removeprefix(_FOLDER)

    def get_checkpoint_filename(self) -> str:
        """Return a checkpoint's name, by default Horovod's for this store."""
        return str(self._given["checkpoint_filename"] or "checkpoint.tf")


def mounted(path: str) -> str:
    """Return where a path of DBFS is on the machine; others as they are."""
    if path.startswith(_SCHEME):
        return _FOLDER + path.removeprefix(_SCHEME).lstrip("/")
    return path.removeprefix("file://")
