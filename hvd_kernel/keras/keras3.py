"""Optimizers of Keras 3: the training step of every backend calls ``apply``, which reduces the gradients first.

Terms.
  scaler  a LossScaleOptimizer. It skips a step with inf or nan, by a branch that only some ranks might take; gradients
          are reduced before the branch, so that all ranks take the same
  passes  backward passes whose gradients are summed on this rank before one reduction
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import inner, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer, WrappingState, check_plain, subclassed

_Scaler: Any = keras.mixed_precision.LossScaleOptimizer


class Reducing(WrappedOptimizer):
    """Mixin for an optimizer of Keras 3 that reduces gradients."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients, and apply them."""
        this: Any = self
        gradients = list(grads)
        if gradients and not this.gradient_accumulation_steps:
            gradients = self.wrapping.reduction(gradients, _sources(this, trainable_variables))
        return super().apply(gradients, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        self.wrapping.sources = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        """Reduce the accumulated gradients: this is Keras's first use of them."""
        this: Any = self
        if this.gradient_accumulation_steps:
            reduced = self.wrapping.reduction(list(grads), self.wrapping.sources)
            grads = [grad if grad is None else grad * self.wrapping.factor for grad in reduced]
        return super()._clip_gradients(grads)  # type: ignore[misc]


class Scaling(WrappedOptimizer):
    """Mixin for a LossScaleOptimizer of Keras 3."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients before the check for inf and nan."""
        reduced = self.wrapping.reduction(list(grads), _sources(self, trainable_variables))
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduce the gradients before the check for inf and nan."""
        reduced = self.wrapping.reduction(list(grads), _sources(self, None))
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


def wrapped(optimizer: Any, reduction: BackendReduction, passes: int, *, average: bool) -> Any:
    """Return a wrapped optimizer.

    Raises
    ------
    ValueError
        The optimizer is wrapped already, or has been built for another number of passes.
    """
    check_plain(optimizer)
    if not isinstance(optimizer, _Scaler) and keras.mixed_precision.dtype_policy().name == "mixed_float16":
        optimizer = _Scaler(optimizer)  # else compile() wraps the result in one
    state = WrappingState(reduction, type(optimizer))
    if passes > 1:
        _accumulate(inner(optimizer), passes)
        state.factor = 1.0 if average else float(passes)
    return subclassed(optimizer, Scaling if isinstance(optimizer, _Scaler) else Reducing, state)


def _accumulate(optimizer: Any, passes: int) -> None:
    if optimizer.gradient_accumulation_steps not in {None, passes}:
        raise ValueError(
            f"backward_passes_per_step={passes} and gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} contradict each other: give one of them."
        )
    if optimizer.built and not optimizer.gradient_accumulation_steps:
        raise ValueError("This optimizer has been built: backward_passes_per_step must be known before that.")
    optimizer.gradient_accumulation_steps = passes


def _sources(optimizer: Any, variables: Any) -> Sequence[Any]:
    trainable = optimizer._trainable_variables if variables is None else variables  # noqa: SLF001 - no public name
    return list(trainable)
