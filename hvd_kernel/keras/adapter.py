"""Keras's adapter: variables, models and optimizers of Keras 3 on any backend; of Keras 2 how models travel.

The variables and modules of Keras 2 are TensorFlow's, and so is all else that there is to know of them.

Words.
  place  of a variable among its model's: names and paths count what else a process has made
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hvd_kernel.frameworks.adapter import Adapter, Elements
from hvd_kernel.keras import saving
from hvd_kernel.keras.flavour import IS_3, keras
from hvd_kernel.numpy.adapter import elements_of

_COUNTED = re.compile(r"_\d+(?=/|$)")


class Keras2Adapter(Adapter):
    """Keras 2's."""

    def reduced(self, value: Any) -> Any:
        """Have a compiled model come back with its optimizer wrapped.

        Raises
        ------
        TypeError
            An optimizer that has been built travels with its model alone.
        """
        return saving.copied(value)


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
        return int(np.prod(value.shape)) * int(np.dtype(value.dtype).itemsize)


def _short(variable: Any) -> str:
    """Return the layer's name and the variable's, without numbers."""
    return _COUNTED.sub("", "/".join(str(variable.path).split("/")[-2:]))


ADAPTER: Adapter = KerasAdapter() if IS_3 else Keras2Adapter()
