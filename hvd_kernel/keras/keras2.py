"""Optimizers of Keras 2, legacy and current ones and LossScaleOptimizers: all of them step by ``apply_gradients``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.core.tensor import Sum
from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import inner, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer, WrappingState, check_plain, subclassed
from hvd_kernel.tensorflow.gradient_aggregation import Aggregation

_SCALERS = tuple(kind for kind in keras.mixed_precision.LossScaleOptimizer.__mro__ if "LossScale" in kind.__name__)


REDUCED_TWICE = (
    "apply_gradients got gradients that are made from those that _compute_gradients has reduced: they would be "
    "reduced twice. Apply them with the optimizer that is wrapped, or use hvd.DistributedGradientTape."
)


class Reducing2(WrappedOptimizer):
    """Mixin for an optimizer of Keras 2 that reduces gradients."""

    @property
    def _agg_helper(self) -> Aggregation | None:
        """Horovod's name of the aggregation of several passes; None if every pass is a step."""
        aggregation: Aggregation | None = self.wrapping.aggregation
        return aggregation

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """Return pairs of a reduced gradient and its variable, as Horovod's optimizer does.

        ``apply_gradients`` does not reduce them again.
        """
        parent: Any = super()
        if hasattr(parent, "_compute_gradients"):  # a legacy optimizer
            pairs = parent._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape)  # noqa: SLF001
        else:
            pairs = parent.compute_gradients(loss, var_list, tape)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        reduced = self._reduced(grads, variables)
        self.wrapping.computed = [grad for grad in reduced if grad is not None]
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and apply them."""
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        apply = super().apply_gradients  # type: ignore[misc]
        aggregation = self._agg_helper
        if not self._are_reduced(grads):
            pairs = list(zip(self._reduced(grads, variables), variables, strict=True))
        if aggregation is None:
            return apply(pairs, *args, **kwargs)
        return aggregation.apply_gradients(lambda: _grouped(apply(pairs, *args, **kwargs)), _Uncounted, pairs)

    def _reduced(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        aggregation = self._agg_helper
        if aggregation is None:
            return self.wrapping.reduction(grads, variables)
        with tf.init_scope():
            _build(self, variables)
        return aggregation.compute_gradients(grads, variables)

    def _are_reduced(self, grads: list[Any]) -> bool:
        """Return whether gradients come from ``_compute_gradients``; reducing others again keeps an average."""
        computed, self.wrapping.computed = self.wrapping.computed, []
        if not computed:
            return False
        present = [grad for grad in grads if grad is not None]
        if present and all(any(grad is result for result in computed) for grad in present):
            return True
        if self.wrapping.reduction.settings.op == Sum or self._agg_helper is not None:
            raise ValueError(REDUCED_TWICE)
        return False


class _Uncounted:
    """Stand-in for an optimizer whose iterations count updates, not passes."""


def wrapped(optimizer: Any, reduction: BackendReduction, passes: int, *, average: bool) -> Any:
    """Return a wrapped optimizer.

    Raises
    ------
    ValueError
        The optimizer is wrapped already, or is a LossScaleOptimizer and gradients of several passes are summed.
    """
    check_plain(optimizer)
    scales = isinstance(optimizer, _SCALERS)
    if not scales and keras.mixed_precision.global_policy().name == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)  # else compile() wraps the result in one
        scales = True
    if scales and passes > 1:
        raise ValueError("backward_passes_per_step > 1 does not work with a LossScaleOptimizer of Keras 2.")
    state = WrappingState(reduction, type(optimizer))
    if passes > 1:
        sparse_as_dense = reduction.settings.sparse_as_dense
        state.aggregation = Aggregation(passes, reduction, sparse_as_dense=sparse_as_dense, average=average)
    return subclassed(optimizer, Reducing2, state)


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the optimizer's variables, which cannot be created within a branch."""
    if hasattr(optimizer, "_create_all_weights"):  # a legacy optimizer
        optimizer._create_all_weights(variables)  # noqa: SLF001 - there is no public name
    elif not getattr(inner(optimizer), "_built", False):
        optimizer.build(variables)


def _grouped(result: Any) -> Any:
    return tf.no_op() if result is None else result
