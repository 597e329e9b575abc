"""``LocalGradientAggregationHelper`` and its eager form: local gradient aggregation under Horovod's names.

For programs that use Horovod's classes themselves; our optimizers use ``aggregation`` as it is, and both forms are one.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.library import set_id
from hvd_kernel.tensorflow.mpi_ops import size_op
from hvd_kernel.tensorflow.reductions import divided
from hvd_kernel.tensorflow.training.aggregation import Aggregation, Reduce
from hvd_kernel.tensorflow.training.plan import key_of

Divisor = Callable[[], Any] | None  # of the gradients of local variables


class _Helper:
    """What both forms do; ``allreduce_func`` gets the gradients and variables that are not local."""

    def __init__(
        self, passes: int, allreduce_func: Reduce, sparse_as_dense: bool, average: bool, divisor: Divisor
    ) -> None:
        self._allreduce = allreduce_func
        self._divisor = divisor
        self._local: dict[int, Any] = {}
        self._aggregation = Aggregation(passes, self._reduce, sparse_as_dense=sparse_as_dense, average=average)

    @property
    def counter(self) -> Any:
        """The variable that counts the passes of this period."""
        return self._aggregation.counter

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to this rank."""
        self._local[key_of(var)] = var

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002 - Horovod's name
        """Add the gradients; return the reduced sums at the end of a period, else what was given."""
        return self._aggregation.compute_gradients(grads, vars)

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: Any,
        grads_and_vars: Sequence[Any],
        global_step: Any = None,
        name: str | None = None,  # noqa: ARG002 - Horovod's
    ) -> Any:
        """Call the closure at the end of a period; else only count the step."""
        return self._aggregation.apply_gradients(apply_grads_closure, optimizer, list(grads_and_vars), global_step)

    def _reduce(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        result = list(grads)
        shared = [place for place, source in enumerate(sources) if key_of(source) not in self._local]
        reduced = self._allreduce([grads[place] for place in shared], [sources[place] for place in shared])
        for place, grad in zip(shared, reduced, strict=True):
            result[place] = grad
        for place, grad in enumerate(grads):
            if self._divisor is not None and place not in shared and grad is not None:
                result[place] = divided(grad, self._divisor())
        return result


class LocalGradientAggregationHelper(_Helper):
    """Sums gradients of several passes, of an optimizer in a graph."""

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,  # noqa: ARG002 - Horovod's, for names of variables
        optimizer_type: str,  # noqa: ARG002 - Horovod's
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",  # noqa: ARG002 - Horovod's, for names of variables
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            (lambda: size_op(set_id(process_set, "Allreduce"))) if scale_local_gradients else None,
        )


class LocalGradientAggregationHelperEager(_Helper):
    """Sums gradients of several passes, of an optimizer in eager mode."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        local_gradients_scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            lambda: local_gradients_scaling_factor,
        )
