"""``DistributedOptimizer`` for Keras: an optimizer whose gradients are reduced over all ranks. Horovod's signatures."""
# ruff: noqa: N802, PLR0917 - Horovod's names and signatures

from __future__ import annotations

import importlib
import warnings
from typing import Any

from hvd_kernel.core.ops import Average
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.keras import backends
from hvd_kernel.keras.backends.reduction import OptimizerSettings
from hvd_kernel.keras.flavour import IS_3, keras
from hvd_kernel.keras.samples import instrument_fit

Compression = backends.Compression


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that gradients are reduced over all ranks before they are applied.

    The result shares the state of ``optimizer``, built or not, and is saved as an optimizer of its class.

    Parameters
    ----------
    optimizer
        An optimizer of Keras. With the policy mixed_float16 the result is a LossScaleOptimizer around it.
    compression
        ``Compression.fp16``: send smaller numbers.
    gradient_predivide_factor
        Part of the division by the number of ranks that is applied before the sum.
    op
        Average or Sum.
    backward_passes_per_step
        Number of batches whose gradients are summed before they are reduced and applied. With an optimizer that has
        ``gradient_accumulation_steps`` this is not needed.
    average_aggregated_gradients
        Divide the sums of several batches by the number of batches.
    groups
        A number of groups, or a list of lists of variables; each group is reduced as a whole or not at all.

    Raises
    ------
    ValueError
        The parameters contradict each other, or the optimizer is wrapped already.
    TypeError
        ``optimizer`` is not an optimizer of the Keras in use.

    Examples
    --------
    ::

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        model.compile(optimizer, loss="mse", jit_compile=False)
    """
    if not isinstance(optimizer, _kinds()):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of {keras.__name__} {keras.__version__}, and this is "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    settings = OptimizerSettings(
        name=name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=gradient_predivide_factor,
        op=op,
        groups=_groups(num_groups, groups),
        process_set=process_set,
        scale_local=scale_local_gradients,
    )
    instrument_fit()
    return wrapped(optimizer, settings, backward_passes_per_step, average=average_aggregated_gradients)


def wrapped(optimizer: Any, settings: OptimizerSettings, passes: int, *, average: bool) -> Any:
    """Return a ``DistributedOptimizer`` with checked settings.

    Raises
    ------
    ValueError
        The optimizer is wrapped already, or has been built for another number of passes.
    """
    flavour = importlib.import_module("hvd_kernel.keras.keras3" if IS_3 else "hvd_kernel.keras.keras2")
    distributed = flavour.wrapped(optimizer, backends.reduction(settings), passes, average=average)
    distributed.wrapping.arguments = settings, passes, average
    return distributed


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedOptimizer`` that does not reduce the gradients of some layers.

    Parameters
    ----------
    local_layers
        A built layer, or several, whose gradients are not reduced.
    scale_local_gradients
        Divide these gradients by the number of ranks, so that they have the weight of averaged ones.

    Raises
    ------
    ValueError
        ``local_layers`` contains a value that is not a layer.
    """
    listed = local_layers if isinstance(local_layers, list | tuple | set) else [local_layers]
    layers = [layer for layer in listed if layer is not None]
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of keras.layers.Layer type.")
    distributed = DistributedOptimizer(
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
    for layer in layers:
        for variable in layer.trainable_weights:
            distributed.register_local_var(variable)
    return distributed


def _kinds() -> tuple[type, ...]:
    legacy = getattr(getattr(keras.optimizers, "legacy", None), "Optimizer", None)
    return tuple(kind for kind in (keras.optimizers.Optimizer, legacy) if kind is not None)


def _groups(num_groups: int, groups: Any) -> Any:
    if num_groups:
        message = "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return num_groups if groups is None else groups
    return groups
