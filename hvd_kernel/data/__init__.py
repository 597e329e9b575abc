"""``horovod.data``: loaders of batches, read ahead by a thread where they are mixed with ``AsyncDataLoaderMixin``."""

from __future__ import annotations

from hvd_kernel.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
