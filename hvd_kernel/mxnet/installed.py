"""MXNet's presence, looked at before anything here imports it; names that it wants of NumPy are put back first."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np

from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks import numpy_names

_PIP = install_command("mxnet")


def prepare() -> None:
    """Import MXNet in a way that works, or refuse.

    Raises
    ------
    ModuleNotFoundError
        It is not installed.
    ImportError
        The NumPy beside it is one that MXNet cannot work with.
    """
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:  # a bare folder of that name is none
        raise ModuleNotFoundError(
            f"hvd_kernel.mxnet needs MXNet 1.9.1, which is not installed in this Python: {_PIP}", name="mxnet"
        )
    if int(np.__version__.split(".", maxsplit=1)[0]) > 1:
        raise ImportError(
            f"hvd_kernel.mxnet: MXNet cannot work with NumPy {np.__version__}, only with NumPy 1: "
            f"in an environment of its own, as it needs 'numpy<2': {_PIP}"
        )
    numpy_names.put_back()
    importlib.import_module("mxnet")


prepare()
