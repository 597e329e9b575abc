"""``DistributedOptimizer``: optimizers of TensorFlow 1 whose gradients, or Adasum steps, are reduced over all ranks.

For an optimizer of Keras it returns Keras's ``DistributedOptimizer``.

Term.
  legacy  an optimizer of TensorFlow 1: tf.compat.v1.train.Optimizer
"""
# ruff: noqa: N802, PLR0917 - Horovod's names and signatures

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.compression import Compression, Compressor
from hvd_kernel.tensorflow.gradient_aggregation import Aggregation, Period, operations, variable
from hvd_kernel.tensorflow.gradient_reduction import Reduction, ReductionPlan, check_predivide, checked_groups, key_of
from hvd_kernel.tensorflow.mpi_ops import Adasum, Average
from hvd_kernel.tensorflow.reductions import allreduce

_KERAS = ("keras", "tf_keras")
Legacy: Any = tf.compat.v1.train.Optimizer


class Wrapper(Legacy):
    """Base of optimizers of TensorFlow 1 that wrap another optimizer and delegate to it."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Delegate to the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Delegate to the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Delegate to the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


class LegacyDistributedOptimizer(Wrapper):
    """Wrapper of an optimizer whose ``compute_gradients`` returns reduced gradients."""

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
        """Exclude the gradient of this variable from the reduction."""
        self._reduction.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a reduced gradient and its variable."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        compute = self._aggregation.compute_gradients if self._aggregation else self._reduction
        return list(zip(compute(grads, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients with the wrapped optimizer; within a period of several passes only count the step."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation is None:
            return apply()
        return self._aggregation.apply_gradients(apply, self._optimizer, pairs, global_step)


class AdasumOptimizer(Wrapper):
    """Optimizer of TensorFlow 1 with which every rank steps by its own gradients, and the steps are combined.

    Adasum adds orthogonal components and averages parallel ones, so ranks take large steps where they agree.

    Terms.
      period  the steps between two combinations
      start   a variable's value before the period
      move    the sum of the rank's own steps in the period; Adasum combines the moves of all ranks

    Raises
    ------
    NotImplementedError
        A process set is used.
    """

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, plan: ReductionPlan, passes: int) -> None:
        if plan.process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support process sets yet")
        period = Period(passes)
        super().__init__(optimizer, name or f"DistributedDelta{type(optimizer).__name__}", use_locking)
        self._plan = plan
        self._period = period
        self._starts: dict[int, Any] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients of this rank."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply a step; at the end of a period replace the moves by the combination of all ranks' moves."""
        pairs = list(grads_and_vars)
        # Also variables without a gradient in this pass: they move in another pass of the period.
        moving = list({key_of(source): source for _, source in pairs}.values())
        self._make_starts(moving)
        begun = self._period.begin(moving, lambda: self._begin(moving))
        with tf.control_dependencies(operations([begun])):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies(_dependencies(stepped)):
            passed = self._period.counter.assign_add(1)
        with tf.control_dependencies(_dependencies(passed)):
            return tf.cond(self._period.is_over(), lambda: self._combine(moving), tf.no_op)

    def _make_starts(self, moving: Sequence[Any]) -> None:
        for source in moving:
            if key_of(source) not in self._starts:
                self._starts[key_of(source)] = variable(source.shape, source.dtype.base_dtype, "delta_start")

    def _begin(self, moving: Sequence[Any]) -> Any:
        # A copy, since reading a variable of TensorFlow 1 returns its memory, which the step overwrites.
        return tf.group(*[self._starts[key_of(source)].assign(tf.raw_ops.DeepCopy(x=source)) for source in moving])

    def _combine(self, moving: Sequence[Any]) -> Any:
        ends = []
        for place, source in enumerate(moving):
            start = self._starts[key_of(source)].read_value()
            move = allreduce(
                tf.convert_to_tensor(source) - start,
                device_dense=self._plan.device_dense,
                compression=self._plan.compression,
                op=Adasum,
                name=f"{self._plan.name}.move_{place}",
                ignore_name_scope=True,
            )
            ends.append(source.assign(start + move))
        with tf.control_dependencies([dependency for end in ends for dependency in _dependencies(end)]):
            return tf.group(self._period.counter.assign(0))


def _dependencies(result: Any) -> list[Any]:
    """Return the operations that others can depend on; none in eager mode."""
    return [] if result is None or tf.executing_eagerly() else [result]


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
    """Wrap an optimizer so that gradients are reduced over all ranks before they are applied.

    Parameters
    ----------
    optimizer
        An optimizer of TensorFlow 1, or of Keras: see ``hvd_kernel.tensorflow.keras.DistributedOptimizer``.
    backward_passes_per_step
        Number of passes whose gradients are summed before they are reduced and applied.
    op
        Average, Sum, or Adasum, which combines the steps of the ranks instead of their gradients.
    average_aggregated_gradients
        Divide the sums of several passes by the number of passes.
    groups
        A number of groups, or a list of lists of variables; each group is reduced as a whole or not at all.

    Raises
    ------
    ValueError
        The parameters contradict each other, or ``optimizer`` is not an optimizer.

    Examples
    --------
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
    """Return whether an optimizer is Keras's, by its class's module: importing Keras takes a second."""
    return any(kind.__module__.partition(".")[0] in _KERAS for kind in type(optimizer).__mro__)
