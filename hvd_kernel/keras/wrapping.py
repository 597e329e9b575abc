"""Wrapping of an optimizer in a subclass of its class, created at run time, that reduces gradients first.

The wrapped optimizer shares the state of the plain one, built or not. Its ``__class__`` is the plain optimizer's class,
under which Keras saves it: a saved model can be loaded without hvd_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import BACKEND, IS_3, inner


@dataclass
class WrappingState:
    """Additional attributes of a wrapped optimizer."""

    reduction: BackendReduction
    plain_class: type
    factor: float = 1.0  # Keras averages over passes; the average times this factor is the sum
    aggregation: Any = None
    computed: list[Any] = field(default_factory=list)  # reduced by Keras 2's _compute_gradients, and not applied yet
    sources: list[Any] = field(default_factory=list)  # of the gradients that Keras is applying
    arguments: Any = None  # settings, passes, and whether passes are averaged: to wrap another optimizer


class WrappedOptimizer:
    """Base of wrapped optimizers, for ``isinstance(optimizer, WrappedOptimizer)``."""

    wrapping: WrappingState

    @property  # type: ignore[misc] # Keras saves an optimizer under its class
    def __class__(self) -> type:
        return self.wrapping.plain_class

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self.wrapping.reduction.register_local(var)


def check_plain(optimizer: Any) -> None:
    """Refuse an optimizer that is wrapped already.

    Raises
    ------
    ValueError
        The optimizer is wrapped.
    """
    if any(isinstance(candidate, WrappedOptimizer) for candidate in (optimizer, inner(optimizer))):
        raise ValueError("This optimizer is a DistributedOptimizer already: wrap it once, or its gradients shrink.")


def subclassed(optimizer: Any, mixin: type, state: WrappingState) -> Any:
    """Return an optimizer that derives from a mixin and the optimizer's class, with the optimizer's attributes."""
    kind = type(optimizer)
    attributes = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "wrapping": state,
    }
    wrapped: Any = object.__new__(type(kind.__name__, (mixin, kind), attributes))
    object.__setattr__(wrapped, "__dict__", optimizer.__dict__)
    return wrapped


def check_model(model: Any) -> None:
    """Refuse a compiled model whose first step would fail or stall on several ranks.

    Raises
    ------
    ValueError
        The message has the remedy.
    """
    optimizer = getattr(model, "optimizer", None)
    within = inner(optimizer)
    if within is not optimizer and isinstance(within, WrappedOptimizer) and not isinstance(optimizer, WrappedOptimizer):
        raise ValueError(
            "A LossScaleOptimizer wraps the DistributedOptimizer. If one rank alone had an infinite gradient, the "
            "other ranks would wait forever: wrap the LossScaleOptimizer with the DistributedOptimizer, "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
        )
    if isinstance(optimizer, WrappedOptimizer) and _compiled_as_a_whole(model):
        raise ValueError(
            "XLA would compile this training step as a whole, and it cannot compile the operation HvdAllreduce of the "
            "DistributedOptimizer: model.compile(..., jit_compile=False)."
        )


def _compiled_as_a_whole(model: Any) -> bool:
    """Return whether XLA compiles TensorFlow's training step; JAX's programs may contain our operations."""
    if BACKEND != "tensorflow" or getattr(model, "run_eagerly", False):
        return False
    return bool(model.jit_compile if IS_3 else getattr(model, "_jit_compile", False))
