"""Backend of Keras that is in use, chosen once: its reduction of gradients, and its ``Compression``."""

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
"""Makes the error for an argument of a call, which is the backend's own class too where it has one."""


def reduction(settings: OptimizerSettings) -> BackendReduction:
    """Return what reduces gradients of this backend."""
    made: BackendReduction = getattr(_module(), _MODULES[BACKEND][1])(settings)
    return made
