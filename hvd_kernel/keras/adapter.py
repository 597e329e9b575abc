"""Keras's adapter: variables, models and optimizers of Keras 3 on any backend; those of Keras 2 are TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from hvd_kernel.frameworks.adapter import Adapter, Elements
from hvd_kernel.numpy.adapter import elements_of


class KerasAdapter(Adapter):
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
        """Return the variables of a model, layer, metric or optimizer by their paths, the state of a generator."""
        if isinstance(value, keras.random.SeedGenerator):
            return value.state
        if isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.Metric):
            return {variable.path: variable for variable in value.variables}
        return value

    def nbytes(self, value: Any) -> int | None:
        """Return a variable's size."""
        if not isinstance(value, keras.Variable):
            return None
        return int(np.prod(value.shape)) * int(np.dtype(value.dtype).itemsize)

    def reduced(self, value: Any) -> Any:
        """Refuse an optimizer by itself: it belongs to its model's variables, which are others elsewhere.

        Raises
        ------
        TypeError
            With the remedy.
        """
        if isinstance(value, keras.optimizers.Optimizer) and value.built:
            raise TypeError("a Keras optimizer travels within the compiled model that it belongs to: keep the model")
        return NotImplemented


ADAPTER: Adapter = KerasAdapter() if keras.__version__ >= "3" else Adapter()
