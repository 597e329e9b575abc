"""Finder that makes ``import mxnet`` work beside NumPy 1.24 and newer: scripts import it before ``horovod.mxnet``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class MxnetFinder(MetaPathFinder):
    """Finds nothing: when somebody asks for MXNet, it puts back what MXNet wants of NumPy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave it to the others to find the module."""
        del path, target  # of Python's interface
        if fullname == "mxnet":
            importlib.import_module("hvd_kernel.frameworks.numpy_names").put_back()
        return None
