"""Stores of an estimator's data and runs, with Horovod's names and paths."""

from __future__ import annotations

from hvd_kernel.spark.common.store.base import Store
from hvd_kernel.spark.common.store.dbfs import DBFSLocalStore
from hvd_kernel.spark.common.store.filesystem import AbstractFilesystemStore, FilesystemStore, LocalStore
from hvd_kernel.spark.common.store.hdfs import HDFSStore

__all__ = ["AbstractFilesystemStore", "DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]
