"""Keras models and optimizers as they travel and are kept: configuration and arrays. Keras is imported late.

An executor imports Keras only after the backend has been set that the driver has: ``ready``.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Sequence[npt.NDArray[Any]]
_BACKEND = "KERAS_BACKEND"


@dataclass(frozen=True)
class PackedModel:
    """A built model: what makes its layers, and their weights; how it was compiled is left out."""

    config: Mapping[str, Any]
    weights: Arrays
    backend: str

    def model(self, custom_objects: Mapping[str, Any]) -> Any:
        """Return the model."""
        keras = ready(self.backend)
        model = keras.saving.deserialize_keras_object(
            dict(self.config), custom_objects=dict(custom_objects), safe_mode=False
        )
        model.set_weights(list(self.weights))
        return model


@dataclass(frozen=True)
class PackedOptimizer:
    """An optimizer: what makes it, and its variables' values where it has them."""

    config: Any
    values: Arrays

    def optimizer(self, model: Any) -> Any:
        """Return the optimizer, built for a model where it was built."""
        keras = importlib.import_module("keras")
        found = keras.optimizers.get(self.config)
        if self.values:
            found.build(model.trainable_variables)
            assign(found.variables, self.values)
        return found


def ready(backend: str) -> Any:
    """Import Keras with this backend.

    Raises
    ------
    RuntimeError
        It has been imported with another one.
    """
    os.environ[_BACKEND] = backend
    keras = importlib.import_module("keras")
    if keras.backend.backend() != backend:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()} here, and the model was made on {backend}.")
    return keras


def pack_model(model: Any) -> PackedModel:
    """Return a model as it travels.

    Raises
    ------
    ValueError
        It has no weights yet.
    """
    if not model.built:
        raise ValueError("The model is not built: begin it with keras.Input(shape), or call it once.")
    keras = importlib.import_module("keras")
    compiled, model.compiled = model.compiled, False  # how it is trained may have functions without a name
    try:
        config = keras.saving.serialize_keras_object(model)
    finally:
        model.compiled = compiled
    return PackedModel(config, model.get_weights(), keras.backend.backend())


def known(custom_objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return custom objects under the names that they are registered by, too: a decorator does not run elsewhere."""
    keras = importlib.import_module("keras")
    named = {keras.saving.get_registered_name(each): each for each in custom_objects.values() if callable(each)}
    return {**named, **custom_objects}


def pack_optimizer(optimizer: Any) -> PackedOptimizer:
    """Return an optimizer as it travels: an object of Keras, or its name."""
    if isinstance(optimizer, str):
        return PackedOptimizer(optimizer, [])
    keras = importlib.import_module("keras")
    values = arrays(optimizer.variables) if optimizer.built else []
    return PackedOptimizer(keras.optimizers.serialize(optimizer), values)


def arrays(variables: Sequence[Any]) -> Arrays:
    """Return what variables hold."""
    keras = importlib.import_module("keras")
    return [np.array(keras.ops.convert_to_numpy(each)) for each in variables]


def assign(variables: Sequence[Any], values: Arrays) -> None:
    """Give variables their values."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def to_bytes(weights: Arrays, optimizer: Arrays) -> bytes:
    """Return a checkpoint: NumPy's npz, in which nothing is a pickle."""
    out = io.BytesIO()
    named = {f"weight.{at}": value for at, value in enumerate(weights)}
    named |= {f"optimizer.{at}": value for at, value in enumerate(optimizer)}
    np.savez(out, **named)  # type: ignore[arg-type] # its own stub takes no keywords but one
    return out.getvalue()


def from_bytes(checkpoint: bytes) -> tuple[Arrays, Arrays]:
    """Return a checkpoint's weights, and the optimizer's values."""
    with np.load(io.BytesIO(checkpoint), allow_pickle=False) as found:
        parts = {
            kind: [found[f"{kind}.{at}"] for at in range(sum(name.startswith(f"{kind}.") for name in found.files))]
            for kind in ("weight", "optimizer")
        }
    return parts["weight"], parts["optimizer"]


def input_shapes(model: Any) -> list[tuple[int, ...]]:
    """Return the shape of each input, -1 where it may vary."""
    return [tuple(-1 if size is None else size for size in each.shape) for each in model.inputs]


def load_forward(packed: PackedModel, custom_objects: Mapping[str, Any], floatx: str) -> Any:
    """Return what makes predictions: arrays in, arrays out."""
    keras = ready(packed.backend)
    keras.config.set_floatx(floatx)
    model = packed.model(custom_objects)
    shapes = input_shapes(model)

    def forward(given: Arrays) -> list[npt.NDArray[Any]]:
        inputs = [array.reshape(shape).astype(floatx) for array, shape in zip(given, shapes, strict=True)]
        found = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
        outputs = list(found) if isinstance(found, list | tuple) else [found]
        return [np.asarray(keras.ops.convert_to_numpy(each)) for each in outputs]

    return forward
