"""Checks before a training begins: what would fail or stall in its first step is told with the remedy."""

from __future__ import annotations

from typing import Any

from hvd_kernel.keras.flavour import BACKEND, IS_3, inner
from hvd_kernel.keras.wrapping import WrappedOptimizer


def ready(model: Any) -> None:
    """Refuse a model that cannot train on several ranks as it is compiled.

    Raises
    ------
    ValueError
        With the remedy.
    """
    optimizer = getattr(model, "optimizer", None)
    within = inner(optimizer)
    if within is not optimizer and isinstance(within, WrappedOptimizer) and not isinstance(optimizer, WrappedOptimizer):
        raise ValueError(
            "A LossScaleOptimizer is around the DistributedOptimizer. Where one rank alone has an infinite gradient, "
            "the others would wait for ever: put the DistributedOptimizer around the LossScaleOptimizer, "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
        )
    if isinstance(optimizer, WrappedOptimizer) and _compiled_as_a_whole(model):
        raise ValueError(
            "XLA would compile this training step as a whole, and it cannot compile the operation HvdAllreduce of the "
            "DistributedOptimizer: model.compile(..., jit_compile=False)."
        )


def _compiled_as_a_whole(model: Any) -> bool:
    """Tell whether TensorFlow has XLA compile the step; a program of JAX's may have our operations."""
    if BACKEND != "tensorflow" or getattr(model, "run_eagerly", False):
        return False
    return bool(model.jit_compile if IS_3 else getattr(model, "_jit_compile", False))
