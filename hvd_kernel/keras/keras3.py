"""Keras 3's optimizers: the training step of every backend ends in ``apply``, and that reduces first.

Terms.
  scaler  a LossScaleOptimizer. It skips a step with an inf or nan, by a branch in which only some ranks may be: so the
          reduction comes before that, and all ranks find the same
  passes  backward passes whose gradients are summed here before one reduction
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import inner, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer, WrappingState, check_plain, subclassed

_Scaler: Any = keras.mixed_precision.LossScaleOptimizer


class Reducing(WrappedOptimizer):
    """An optimizer of Keras 3, in which every backend's training step ends."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients, and do what the optimizer does with them."""
        this: Any = self
        given = list(grads)
        if given and not this.gradient_accumulation_steps:
            given = self.wrapping.reduction(given, _sources(this, trainable_variables))
        return super().apply(given, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        self.wrapping.sources = list(trainable_variables)
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        """Reduce here what Keras has accumulated: the first thing that it does with it."""
        this: Any = self
        if this.gradient_accumulation_steps:
            reduced = self.wrapping.reduction(list(grads), self.wrapping.sources)
            grads = [grad if grad is None else grad * self.wrapping.factor for grad in reduced]
        return super()._clip_gradients(grads)  # type: ignore[misc]


class Scaling(WrappedOptimizer):
    """A LossScaleOptimizer of Keras 3."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients before it looks for infs."""
        reduced = self.wrapping.reduction(list(grads), _sources(self, trainable_variables))
        return super().apply(reduced, trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduce the gradients before it looks for infs."""
        reduced = self.wrapping.reduction(list(grads), _sources(self, None))
        return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]


def wrapped(optimizer: Any, reduction: BackendReduction, passes: int, *, average: bool) -> Any:
    """Return an optimizer that reduces.

    Raises
    ------
    ValueError
        It is wrapped already, or has been built for another number of passes.
    """
    check_plain(optimizer)
    if not isinstance(optimizer, _Scaler) and keras.mixed_precision.dtype_policy().name == "mixed_float16":
        optimizer = _Scaler(optimizer)  # else compile() puts one around ours
    ours = WrappingState(reduction, type(optimizer))
    if passes > 1:
        _accumulate(inner(optimizer), passes)
        ours.factor = 1.0 if average else float(passes)
    return subclassed(optimizer, Scaling if isinstance(optimizer, _Scaler) else Reducing, ours)


def _accumulate(optimizer: Any, passes: int) -> None:
    if optimizer.gradient_accumulation_steps not in {None, passes}:
        raise ValueError(
            f"backward_passes_per_step={passes} and gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} contradict each other: give one of them."
        )
    if optimizer.built and not optimizer.gradient_accumulation_steps:
        raise ValueError("This optimizer has been built: backward_passes_per_step must be known before that.")
    optimizer.gradient_accumulation_steps = passes


def _sources(optimizer: Any, given: Any) -> Sequence[Any]:
    return list(optimizer._trainable_variables if given is None else given)  # noqa: SLF001 - Keras 3 has no public name
