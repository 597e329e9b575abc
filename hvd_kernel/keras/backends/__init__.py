"""Keras's backend, selected once: its reduction of gradients, its ``Compression`` and its class of argument errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction, OptimizerSettings
from hvd_kernel.keras.flavour import BACKEND

_MODULES = {
    "torch": ("hvd_kernel.keras.backends.on_torch", "TorchReduction"),
    "tensorflow": ("hvd_kernel.keras.backends.on_tensorflow", "TensorflowReduction"),
    "jax": ("hvd_kernel.keras.backends.on_jax", "JaxReduction"),
}


def _module() -> Any:
    if BACKEND not in _MODULES:
        raise ImportError(
            f"hvd_kernel.keras works on Keras's backends {', '.join(_MODULES)}, and Keras uses {BACKEND!r} here: "
            "set KERAS_BACKEND to one of them before Keras is imported."
        )
    return importlib.import_module(_MODULES[BACKEND][0])


Compression: Any = _module().Compression
argument_error: Callable[[str], ValueError] = getattr(_module(), "argument_error", ValueError)
"""Creates the error for an invalid argument: a ValueError, and an error of the backend if it has a class for this."""


def reduction(settings: OptimizerSettings) -> BackendReduction:
    """Return the reduction of gradients for this backend."""
    backend_reduction: BackendReduction = getattr(_module(), _MODULES[BACKEND][1])(settings)
    return backend_reduction
