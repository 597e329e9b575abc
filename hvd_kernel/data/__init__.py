"""``horovod.data``: loaders of batches; with ``AsyncDataLoaderMixin`` a thread reads batches ahead."""

from __future__ import annotations

from hvd_kernel.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
