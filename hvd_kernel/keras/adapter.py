"""Keras's adapter: variables, models and optimizers of Keras 3 on any backend; for Keras 2, pickling of models.

The variables and modules of Keras 2 are TensorFlow's, and TensorFlow's adapter handles them.

Term.
  place  index of a variable in its model; names and paths contain numbers that depend on what else a process has built
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.keras import saving
from hvd_kernel.keras.flavour import BACKEND, IS_3, keras, variables_of
from hvd_kernel.numpy.adapter import elements_of

_NUMBER = re.compile(r"_\d+(?=/|$)")


class Keras2Adapter(FrameworkAdapter):
    """Adapter for Keras 2."""

    def reduced(self, value: Any) -> Any:
        """Pickle a compiled model so that its optimizer is wrapped again.

        Raises
        ------
        TypeError
            The value is a built optimizer, which can be pickled with its model only.
        """
        return saving.copied(value)

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of optimizer state and of parameters; the backend's adapter counts all tensors."""
        objects = gc.get_objects()
        optimizers = [candidate for candidate in objects if issubclass(type(candidate), keras.optimizers.Optimizer)]
        layers = [candidate for candidate in objects if issubclass(type(candidate), keras.layers.Layer)]
        states = (variable for optimizer in optimizers for variable in variables_of(optimizer))
        parts = {"optimizer state": _bytes_of(states)}
        if BACKEND != "torch":  # torch's adapter counts its parameters
            parts["parameters"] = _bytes_of(variable for layer in layers for variable in layer.trainable_variables)
        return parts


class KerasAdapter(Keras2Adapter):
    """Adapter for Keras 3."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return shape and dtype of a variable."""
        if not isinstance(value, keras.Variable):
            return None
        return {"shape": str(tuple(value.shape)), "dtype": str(value.dtype)}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of a variable."""
        if not isinstance(value, keras.Variable):
            return None
        array = np.asarray(keras.ops.convert_to_numpy(value))
        return elements_of(array, "tensor")

    def state(self, value: Any) -> Any:
        """Return the variables of a model, layer, metric or optimizer by place, or the state of a generator."""
        if isinstance(value, keras.random.SeedGenerator):
            return value.state
        if isinstance(value, keras.optimizers.Optimizer):
            return list(value.variables)
        if isinstance(value, keras.Layer | keras.Metric):
            return {f"{place} {_short(variable)}": variable for place, variable in enumerate(value.variables)}
        return value

    def nbytes(self, value: Any) -> int | None:
        """Return the size of a variable in bytes."""
        if not isinstance(value, keras.Variable):
            return None
        return _size(value)


def _bytes_of(variables: Iterable[Any]) -> int:
    """Return the total size of distinct variables."""
    return sum({id(variable): _size(variable) for variable in variables}.values())


def _size(variable: Any) -> int:
    itemsize = getattr(variable.dtype, "size", None) or np.dtype(variable.dtype).itemsize
    return int(np.prod(variable.shape)) * int(itemsize)


def _short(variable: Any) -> str:
    """Return the names of the layer and the variable, without numbers."""
    return _NUMBER.sub("", "/".join(str(variable.path).split("/")[-2:]))


ADAPTER: FrameworkAdapter = KerasAdapter() if IS_3 else Keras2Adapter()
