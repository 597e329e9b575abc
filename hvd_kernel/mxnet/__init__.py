"""Horovod's API for MXNet 1.9.1: ``import hvd_kernel.mxnet as hvd``, before ``import mxnet`` or instead of it.

::

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1 * hvd.size()})
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np

from hvd_kernel import __version__
from hvd_kernel.core import basics, build_info
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks import numpy_names


def _import_mxnet() -> None:
    """Import MXNet before the modules below do, after restoring the names that it uses of NumPy.

    Raises
    ------
    ModuleNotFoundError
        MXNet is not installed.
    ImportError
        MXNet does not work with the installed NumPy.
    """
    pip = install_command("mxnet")
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:  # an empty folder named mxnet has a spec without an origin
        raise ModuleNotFoundError(
            f"hvd_kernel.mxnet needs MXNet 1.9.1, which is not installed in this Python: {pip}", name="mxnet"
        )
    if int(np.__version__.split(".", maxsplit=1)[0]) > 1:
        raise ImportError(
            f"hvd_kernel.mxnet: MXNet cannot work with NumPy {np.__version__}, only with NumPy 1: "
            f"in an environment of its own, as it needs 'numpy<2': {pip}"
        )
    numpy_names.restore()
    importlib.import_module("mxnet")


_import_mxnet()

from hvd_kernel.frameworks.compression import Compression
from hvd_kernel.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from hvd_kernel.mxnet.mpi_ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    join,
    reducescatter,
    shutdown,
)
from hvd_kernel.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "bench",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "reducescatter",
    "remove_process_set",
]
__all__ += basics.__all__
__all__ += build_info.__all__
