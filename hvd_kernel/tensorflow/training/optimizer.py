"""``DistributedOptimizer``: optimizers of TensorFlow 1 whose gradients are reduced over all ranks; Keras's go to Keras.

Terms.
  legacy  an optimizer of TensorFlow 1: tf.compat.v1.train.Optimizer
"""
# ruff: noqa: N802, PLR0917 - Horovod's names and signatures

from __future__ import annotations

import importlib
from typing import Any

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.compression import Compression, Compressor
from hvd_kernel.tensorflow.mpi_ops import Adasum, Average
from hvd_kernel.tensorflow.training.adasum import AdasumOptimizer
from hvd_kernel.tensorflow.training.aggregation import Aggregation
from hvd_kernel.tensorflow.training.plan import ReductionPlan, check_predivide, checked_groups
from hvd_kernel.tensorflow.training.reduction import Reduction
from hvd_kernel.tensorflow.training.wrapper import Legacy, Wrapper

_KERAS = ("keras", "tf_keras")


class LegacyDistributedOptimizer(Wrapper):
    """An optimizer around another one, whose ``compute_gradients`` returns reduced gradients."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reduction: Reduction,
        aggregation: Aggregation | None,
    ) -> None:
        super().__init__(optimizer, name or f"Distributed{type(optimizer).__name__}", use_locking)
        self._reduction = reduction
        self._aggregation = aggregation

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to this rank: it is not reduced."""
        self._reduction.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a gradient, reduced over all ranks, and its variable."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        compute = self._aggregation.compute_gradients if self._aggregation else self._reduction
        return list(zip(compute(grads, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Let the wrapped optimizer apply them; within a period of several passes only count the step."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation is None:
            return apply()
        return self._aggregation.apply_gradients(apply, self._optimizer, pairs, global_step)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that does what the given one does, with gradients reduced over all ranks.

    Parameters
    ----------
    optimizer
        Of TensorFlow 1, or of Keras (whose ``hvd_kernel.tensorflow.keras.DistributedOptimizer`` this then is).
    backward_passes_per_step
        Sum the gradients of so many passes before they are reduced and applied.
    op
        Average, Sum, or Adasum, which combines the steps that the ranks have taken instead of their gradients.
    average_aggregated_gradients
        Divide those sums by the number of passes.
    groups
        A number of groups, or a list of lists of variables, whose gradients are reduced together or not at all.

    Raises
    ------
    ValueError
        The parameters do not fit together, or it is not an optimizer.

    Example
    -------
    ::

        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdagradOptimizer(0.01 * hvd.size()))
        train = optimizer.minimize(loss)
    """
    check_predivide(gradient_predivide_factor, op)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if _is_keras(optimizer):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        return importlib.import_module("hvd_kernel.tensorflow.keras").DistributedOptimizer(
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
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if not isinstance(optimizer, Legacy):
        raise ValueError(  # noqa: TRY004 - Horovod's error
            f"Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: {optimizer}"
        )
    plan = ReductionPlan(
        name=name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=checked_groups(num_groups, groups),
        process_set=process_set,
    )
    if op == Adasum:
        return AdasumOptimizer(optimizer, name, use_locking, plan, backward_passes_per_step)
    reduction = Reduction(plan, scale_local=scale_local_gradients)
    aggregation = (
        Aggregation(
            backward_passes_per_step,
            reduction,
            sparse_as_dense=sparse_as_dense,
            average=average_aggregated_gradients,
        )
        if backward_passes_per_step != 1
        else None
    )
    return LegacyDistributedOptimizer(optimizer, name, use_locking, reduction, aggregation)


def _is_keras(optimizer: Any) -> bool:
    """Tell by the module of its class: importing Keras to ask takes a second, and there may be two of them."""
    return any(kind.__module__.partition(".")[0] in _KERAS for kind in type(optimizer).__mro__)
