"""Wrapping an optimizer: a subclass of its own class, made at run time, that reduces gradients before all else.

The wrapped one shares the state of the given one, built or not. To Keras's saving it is of the given one's class
(``__class__`` says so): what is saved with it loads where nobody knows of us.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction
from hvd_kernel.keras.flavour import inner


@dataclass
class WrappingState:
    """What a wrapped optimizer knows besides."""

    reduction: BackendReduction
    given: type
    factor: float = 1.0  # Keras averages over passes; to sum, this times its result
    aggregation: Any = None
    computed: list[Any] = field(
        default_factory=list
    )  # what Keras 2's _compute_gradients has reduced, until it is applied
    sources: list[Any] = field(default_factory=list)  # of the gradients that Keras works on now
    again: Any = None  # settings, passes and whether they are averaged: to wrap another one so


class WrappedOptimizer:
    """What tells wrapped optimizers from others: ``isinstance(optimizer, WrappedOptimizer)``."""

    wrapping: WrappingState

    @property  # type: ignore[misc] # Keras saves an optimizer under its class
    def __class__(self) -> type:
        return self.wrapping.given

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to this rank: it is not reduced."""
        self.wrapping.reduction.register_local(var)


def check_plain(optimizer: Any) -> None:
    """Refuse an optimizer that reduces already.

    Raises
    ------
    ValueError
        It does.
    """
    if any(isinstance(each, WrappedOptimizer) for each in (optimizer, inner(optimizer))):
        raise ValueError("This optimizer is a DistributedOptimizer already: wrap it once, or its gradients shrink.")


def subclassed(optimizer: Any, mixin: type, ours: WrappingState) -> Any:
    """Return an optimizer of the mixin and its own class, with the given one's state."""
    kind = type(optimizer)
    facts = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "wrapping": ours,
    }
    made: Any = object.__new__(type(kind.__name__, (mixin, kind), facts))
    object.__setattr__(made, "__dict__", optimizer.__dict__)
    return made
