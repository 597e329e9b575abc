"""Horovod's API for TensorFlow: ``import hvd_kernel.tensorflow as hvd``.

::

    hvd.init()
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any

from hvd_kernel import __version__
from hvd_kernel.core import basics, build_info, step_counts
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.formatting.install_command import install_command

_OLDEST = (2, 13)


def _check_tensorflow() -> None:
    """Import TensorFlow before the modules below do.

    Raises
    ------
    ModuleNotFoundError
        TensorFlow is not installed.
    ImportError
        The installed version is too old.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            "hvd_kernel.tensorflow needs TensorFlow, which is not installed in this Python: "
            f"{install_command('tensorflow')}",
            name="tensorflow",
        )
    version = str(import_module("tensorflow").__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ImportError(
            f"hvd_kernel.tensorflow needs TensorFlow {oldest} or newer, and this Python has {version}, "
            "whose operations cannot wait for other ranks without blocking a thread: "
            f"{install_command('tensorflow', '--upgrade')}"
        )


_check_tensorflow()

from hvd_kernel.tensorflow import elastic
from hvd_kernel.tensorflow.compression import Compression
from hvd_kernel.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from hvd_kernel.tensorflow.mpi_ops import (
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    count_samples,
    grouped_allgather,
    handle_average_backwards_compatibility,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hvd_kernel.tensorflow.optimizer import DistributedOptimizer
from hvd_kernel.tensorflow.reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from hvd_kernel.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

step_counts.attach_loaded("keras", "tf_keras")

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "SyncBatchNormalization",  # noqa: F405 - see _LATER
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "bench",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "count_samples",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]
__all__ += basics.__all__
__all__ += build_info.__all__

_LATER = {
    "SyncBatchNormalization": "hvd_kernel.tensorflow.sync_batch_norm"
}  # a Keras layer: importing Keras takes long


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(import_module(_LATER[name]), name)
