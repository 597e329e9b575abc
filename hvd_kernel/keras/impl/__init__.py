"""``horovod._keras``: the functions behind Horovod's frontends of Keras, for programs and libraries that import it.

As in Horovod, the first parameter is the module or backend of Keras; it is ignored, as there is one Keras per process.
``horovod._keras.callbacks`` and ``horovod._keras.elastic`` are this module too.
"""
# ruff: noqa: ARG001, ARG002, PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.core.ops import Average
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.keras import callbacks as _callbacks  # the plain names are Horovod's submodules
from hvd_kernel.keras import elastic as _elastic
from hvd_kernel.keras import functions, saving
from hvd_kernel.keras.optimizer import Compression, DistributedOptimizer

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "CommitStateCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
    "UpdateBatchStateCallbackImpl",
    "UpdateEpochStateCallbackImpl",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "check_keras_optimizer_type",
    "create_distributed_optimizer",
    "get_keras_optimizer_base_type",
    "load_model",
    "reducescatter",
]


def get_keras_optimizer_base_type(k: Any) -> type:
    """Return the base class of optimizers."""
    base: type = k.optimizers.Optimizer
    return base


def check_keras_optimizer_type(k: Any, optimizer: Any) -> None:
    """Check that a value is an optimizer.

    Raises
    ------
    ValueError
        The value is not an optimizer.
    """
    if not isinstance(optimizer, get_keras_optimizer_base_type(k)):
        raise ValueError(  # noqa: TRY004 - Horovod's
            f"Optimizer has to be an instance of {get_keras_optimizer_base_type(k)}: {type(optimizer)}."
        )


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedOptimizer``."""
    return DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def broadcast_global_variables(backend: Any, root_rank: int) -> None:
    """Raise RuntimeError with the remedy, as ``hvd.broadcast_global_variables`` does."""
    functions.broadcast_global_variables(root_rank)


def allreduce(
    backend: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the reduced value as a tensor."""
    return functions.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression, process_set)


def allgather(backend: Any, value: Any, name: str | None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the rows of all ranks as a tensor."""
    return functions.allgather(value, name, process_set)


def broadcast(
    backend: Any, value: Any, root_rank: int, name: str | None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's value as a tensor."""
    return functions.broadcast(value, root_rank, name, process_set)


def reducescatter(
    backend: Any, value: Any, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Any:
    """Return this rank's share of the reduced rows as a tensor."""
    return functions.reducescatter(value, name, op, process_set)


def load_model(
    keras: Any,
    wrap_optimizer: Any,
    optimizer_modules: Any,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
) -> Any:
    """Load a model; its optimizer is a ``DistributedOptimizer`` with the saved state."""
    return saving.load_model(filepath, custom_optimizers, custom_objects, Compression.none)


# Callbacks.


class BroadcastGlobalVariablesCallbackImpl(_callbacks.BroadcastGlobalVariablesCallback):
    """``BroadcastGlobalVariablesCallback(root_rank, device, local_variables)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class MetricAverageCallbackImpl(_callbacks.MetricAverageCallback):
    """``MetricAverageCallback(device)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class LearningRateScheduleCallbackImpl(_callbacks.LearningRateScheduleCallback):
    """``LearningRateScheduleCallback(initial_lr, multiplier, ...)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class LearningRateWarmupCallbackImpl(_callbacks.LearningRateWarmupCallback):
    """``LearningRateWarmupCallback(initial_lr, ...)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class CommitStateCallbackImpl(_elastic.CommitStateCallback):
    """``CommitStateCallback(state, batches_per_commit)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class UpdateBatchStateCallbackImpl(_elastic.UpdateBatchStateCallback):
    """``UpdateBatchStateCallback(state)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class UpdateEpochStateCallbackImpl(_elastic.UpdateEpochStateCallback):
    """``UpdateEpochStateCallback(state)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
