"""Keras's adapter: variables, models and optimizers of Keras 3 on any backend; of Keras 2 how models travel.

The variables and modules of Keras 2 are TensorFlow's, and so is all else that there is to know of them.

Terms.
  place  of a variable among its model's: names and paths count what else a process has made
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.keras import saving
from hvd_kernel.keras.flavour import BACKEND, IS_3, keras
from hvd_kernel.numpy.adapter import elements_of

_COUNTED = re.compile(r"_\d+(?=/|$)")


class Keras2Adapter(FrameworkAdapter):
    """Keras 2's."""

    def reduced(self, value: Any) -> Any:
        """Have a compiled model come back with its optimizer wrapped.

        Raises
        ------
        TypeError
            An optimizer that has been built travels with its model alone.
        """
        return saving.copied(value)

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of what optimizers have made, and of what trains; all tensors are the backend's to count."""
        objects = gc.get_objects()
        optimizers = [each for each in objects if issubclass(type(each), keras.optimizers.Optimizer)]
        layers = [each for each in objects if issubclass(type(each), keras.layers.Layer)]
        parts = {"optimizer state": _bytes_of(variable for each in optimizers for variable in _variables(each))}
        if BACKEND != "torch":  # where torch's adapter tells them
            parts["parameters"] = _bytes_of(variable for each in layers for variable in each.trainable_variables)
        return parts


class KerasAdapter(Keras2Adapter):
    """Keras 3's."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return a variable's shape and type."""
        if not isinstance(value, keras.Variable):
            return None
        return {"shape": str(tuple(value.shape)), "dtype": str(value.dtype)}

    def elements(self, value: Any) -> Elements | None:
        """Return a variable's elements."""
        if not isinstance(value, keras.Variable):
            return None
        array = np.asarray(keras.ops.convert_to_numpy(value))
        return elements_of(array, "tensor")

    def state(self, value: Any) -> Any:
        """Return the variables of a model, layer, metric or optimizer by their places, the state of a generator."""
        if isinstance(value, keras.random.SeedGenerator):
            return value.state
        if isinstance(value, keras.optimizers.Optimizer):
            return list(value.variables)
        if isinstance(value, keras.Layer | keras.Metric):
            return {f"{place} {_short(variable)}": variable for place, variable in enumerate(value.variables)}
        return value

    def nbytes(self, value: Any) -> int | None:
        """Return a variable's size."""
        if not isinstance(value, keras.Variable):
            return None
        return _size(value)


def _variables(optimizer: Any) -> Iterable[Any]:
    found = optimizer.variables  # of some Keras 2 a method
    yield from found() if callable(found) else found


def _bytes_of(variables: Iterable[Any]) -> int:
    """Return the size of variables, each once."""
    return sum({id(each): _size(each) for each in variables}.values())


def _size(variable: Any) -> int:
    each = getattr(variable.dtype, "size", None) or np.dtype(variable.dtype).itemsize
    return int(np.prod(variable.shape)) * int(each)


def _short(variable: Any) -> str:
    """Return the layer's name and the variable's, without numbers."""
    return _COUNTED.sub("", "/".join(str(variable.path).split("/")[-2:]))


ADAPTER: FrameworkAdapter = KerasAdapter() if IS_3 else Keras2Adapter()
