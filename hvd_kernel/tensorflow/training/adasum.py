"""``DistributedOptimizer(op=Adasum)``: every rank takes steps with its own gradients; the steps are combined.

Adasum adds what is orthogonal and averages what is parallel, so ranks take large steps together where they agree.

Terms.
  period  the steps between two combinations
  start   a variable before the period
  move    what the rank's own steps have added to it since; what travels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import global_process_set
from hvd_kernel.tensorflow.mpi_ops import Adasum
from hvd_kernel.tensorflow.reductions import allreduce
from hvd_kernel.tensorflow.training.aggregation import Period, operations, variable
from hvd_kernel.tensorflow.training.plan import ReductionPlan, key_of
from hvd_kernel.tensorflow.training.wrapper import Wrapper


class AdasumOptimizer(Wrapper):
    """An optimizer of combined steps, of TensorFlow 1.

    Raises
    ------
    NotImplementedError
        With a process set.
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
        """Return this rank's own gradients."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Take a step; the last one of a period is replaced by the combination of all ranks' moves."""
        pairs = list(grads_and_vars)
        # Also those without a gradient in this pass: they move in another pass of the period.
        moving = list({key_of(source): source for _, source in pairs}.values())
        self._make_starts(moving)
        begun = self._period.begin(moving, lambda: self._begin(moving))
        with tf.control_dependencies(operations([begun])):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies(_done(stepped)):
            passed = self._period.counter.assign_add(1)
        with tf.control_dependencies(_done(passed)):
            return tf.cond(self._period.is_over(), lambda: self._combine(moving), tf.no_op)

    def _make_starts(self, moving: Sequence[Any]) -> None:
        for each in moving:
            if key_of(each) not in self._starts:
                self._starts[key_of(each)] = variable(each.shape, each.dtype.base_dtype, "delta_start")

    def _begin(self, moving: Sequence[Any]) -> Any:
        # A copy: what is read from a variable of TensorFlow 1 is its very memory, which the step writes into.
        return tf.group(*[self._starts[key_of(each)].assign(tf.raw_ops.DeepCopy(x=each)) for each in moving])

    def _combine(self, moving: Sequence[Any]) -> Any:
        ends = []
        for place, each in enumerate(moving):
            start = self._starts[key_of(each)].read_value()
            move = allreduce(
                tf.convert_to_tensor(each) - start,
                device_dense=self._plan.device_dense,
                compression=self._plan.compression,
                op=Adasum,
                name=f"{self._plan.name}.move_{place}",
                ignore_name_scope=True,
            )
            ends.append(each.assign(start + move))
        with tf.control_dependencies([end for each in ends for end in _done(each)]):
            return tf.group(self._period.counter.assign(0))


def _done(result: Any) -> list[Any]:
    """Return what others can depend on: in eager mode there is nothing to wait for."""
    return [] if result is None or tf.executing_eagerly() else [result]
