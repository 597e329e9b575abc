"""Stores on HDFS, through pyarrow's libhdfs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from hvd_kernel.spark.common.store.filesystem import AbstractFilesystemStore

_SCHEME = "hdfs://"


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

    scheme = _SCHEME

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
        return path.startswith(_SCHEME)

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
