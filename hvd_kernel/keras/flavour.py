"""Keras's flavour: Keras 3 on any backend, or Keras 2 of TensorFlow up to 2.15 or as tf-keras; its variables as arrays.

tf-keras is used if TF_USE_LEGACY_KERAS is set, as in TensorFlow.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from hvd_kernel.core import step_counts
from hvd_kernel.formatting.install_command import install_command

_EXTENSION_TYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # raw bytes for NumPy
_PIP = install_command("keras")


def _import_keras() -> ModuleType:
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in {"1", "true"}
    name = "tf_keras" if legacy and importlib.util.find_spec("tf_keras") else "keras"
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(
            f"hvd_kernel.keras needs Keras, which is not installed in this Python: {_PIP}", name=name
        )
    return importlib.import_module(name)


keras: Any = _import_keras()
step_counts.attach(keras)
IS_3 = not str(keras.__version__).startswith("2.")
BACKEND: str = keras.backend.backend() if IS_3 else "tensorflow"


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Return a number, an array, or a tensor or variable of any backend as a NumPy array, which may be a view."""
    if isinstance(value, int | float | list | tuple | np.ndarray | np.generic):
        return np.asarray(value)
    if IS_3:
        return np.asarray(keras.ops.convert_to_numpy(value))
    return np.asarray(value.numpy() if hasattr(value, "numpy") else keras.backend.get_value(value))


def eager_array_of(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array of the type of Keras's tensor: Python numbers get 32 bits if they fit."""
    array = array_of(value)
    if isinstance(value, np.ndarray | np.generic) or is_tensor(value):
        return array
    narrow = {"float64": keras.backend.floatx(), "int64": "int32"}.get(array.dtype.name)
    small = array if narrow is None else array.astype(narrow)
    return small if array.dtype.kind == "f" or np.array_equal(small, array) else array


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """Return an array as a tensor of the backend.

    Return the array in a graph of TensorFlow 1, whose tensors have no values, and if JAX lacks its type.
    """
    if IS_3:
        if BACKEND == "jax" and _narrowed_by_jax(array.dtype):
            return array
        return keras.ops.convert_to_tensor(array)
    tf = importlib.import_module("tensorflow")
    return tf.constant(array) if tf.executing_eagerly() else array


def _narrowed_by_jax(dtype: Any) -> bool:
    return bool(importlib.import_module("jax").dtypes.canonicalize_dtype(dtype) != dtype)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor or variable of the backend."""
    if IS_3:
        return bool(keras.ops.is_tensor(value)) or isinstance(value, keras.Variable)
    return hasattr(value, "numpy")


def numbers_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a number, array or tensor of numbers as an array of float64 or complex128; None for other values."""
    if not (is_tensor(value) or isinstance(value, int | float | np.generic | np.ndarray)):
        return None
    array = array_of(value)
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if array.dtype.kind in "biuf" or array.dtype.name in _EXTENSION_TYPES else None


def variables_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables: a property, or a method in older versions."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)


def weights_of(model: Any) -> list[Any]:
    """Return the variables that must be equal on all ranks: a model's weights, without metrics and generators."""
    return list(model.weights)


def path_of(variable: Any) -> str:
    """Return the name of a variable in errors."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "a variable"))


def assign(variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Assign values to variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def inner(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights: the inner one of a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def rate_of(optimizer: Any) -> float:
    """Return the current learning rate.

    Raises
    ------
    TypeError
        The learning rate follows a schedule.
    """
    rate = getattr(inner(optimizer), "_learning_rate", None)
    if callable(rate):
        raise TypeError(
            f"This optimizer's learning rate follows {type(rate).__name__} and cannot be assigned: create the "
            "optimizer with a number, or leave out the callback that sets the learning rate."
        )
    return float(array_of(optimizer.learning_rate))


def set_rate(optimizer: Any, rate: float) -> None:
    """Assign the learning rate."""
    current = optimizer.learning_rate
    if hasattr(current, "assign"):
        current.assign(rate)
    else:
        optimizer.learning_rate = rate
