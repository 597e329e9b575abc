"""Horovod's API for Keras: ``import hvd_kernel.keras as hvd``. Keras 3 on TensorFlow, torch or JAX, and Keras 2.

::

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss="mse", jit_compile=False)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from __future__ import annotations

from hvd_kernel import __version__
from hvd_kernel.core import basics, build_info
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.ops import allgather_object, barrier, broadcast_object
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.keras import callbacks, elastic
from hvd_kernel.keras.backends import Compression
from hvd_kernel.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from hvd_kernel.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvd_kernel.keras.saving import load_model

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "bench",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "reducescatter",
    "remove_process_set",
]
__all__ += basics.__all__
__all__ += build_info.__all__
