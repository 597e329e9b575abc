"""Keras 2's optimizers: older ones, newer ones and LossScaleOptimizers all end in ``apply_gradients``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import inner, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer, WrappingState, check_plain, subclassed
from hvd_kernel.tensorflow.training.aggregation import Aggregation

_SCALERS = tuple(kind for kind in keras.mixed_precision.LossScaleOptimizer.__mro__ if "LossScale" in kind.__name__)


class Reducing2(WrappedOptimizer):
    """An optimizer of Keras 2."""

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and do what the optimizer does with them."""
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        apply = super().apply_gradients  # type: ignore[misc]
        aggregation = self.wrapping.aggregation
        if aggregation is None:
            reduced = self.wrapping.reduction(grads, variables)
            return apply(list(zip(reduced, variables, strict=True)), *args, **kwargs)
        with tf.init_scope():
            _build(self, variables)
        summed = list(zip(aggregation.compute_gradients(grads, variables), variables, strict=True))
        return aggregation.apply_gradients(lambda: _grouped(apply(summed, *args, **kwargs)), _Uncounted, summed)


class _Uncounted:
    """In place of an optimizer whose iterations are those of updates."""


def wrapped(optimizer: Any, reduction: BackendReduction, passes: int, *, average: bool) -> Any:
    """Return an optimizer that reduces.

    Raises
    ------
    ValueError
        It is wrapped already, or gradients of several passes are to be summed in front of a LossScaleOptimizer.
    """
    check_plain(optimizer)
    scales = isinstance(optimizer, _SCALERS)
    if not scales and keras.mixed_precision.global_policy().name == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)  # else compile() puts one around ours
        scales = True
    if scales and passes > 1:
        raise ValueError("backward_passes_per_step > 1 does not work with a LossScaleOptimizer of Keras 2.")
    ours = WrappingState(reduction, type(optimizer))
    if passes > 1:
        sparse_as_dense = reduction.settings.sparse_as_dense
        ours.aggregation = Aggregation(passes, reduction, sparse_as_dense=sparse_as_dense, average=average)
    return subclassed(optimizer, Reducing2, ours)


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Make the optimizer's variables now: it cannot within a branch."""
    if hasattr(optimizer, "_create_all_weights"):  # an older one
        optimizer._create_all_weights(variables)  # noqa: SLF001 - there is no public name
    elif not getattr(inner(optimizer), "_built", False):
        optimizer.build(variables)


def _grouped(result: Any) -> Any:
    return tf.no_op() if result is None else result
