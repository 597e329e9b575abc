"""Serialized Keras models and optimizers: configuration and arrays.

Keras is imported late: an executor first sets the backend of the driver, in ``ready``.
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
    """A built model: configuration and weights, without compile arguments."""

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
    """An optimizer: configuration, and the values of its variables if it is built."""

    config: Any
    values: Arrays

    def optimizer(self, model: Any) -> Any:
        """Return the optimizer; build it for a model if it was built."""
        keras = importlib.import_module("keras")
        optimizer = keras.optimizers.get(self.config)
        if self.values:
            optimizer.build(model.trainable_variables)
            assign(optimizer.variables, self.values)
        return optimizer


def ready(backend: str) -> Any:
    """Import Keras with a backend.

    Raises
    ------
    RuntimeError
        Keras was imported with another backend.
    """
    os.environ[_BACKEND] = backend
    keras = importlib.import_module("keras")
    if keras.backend.backend() != backend:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()} here, and the model was made on {backend}.")
    return keras


def pack_model(model: Any) -> PackedModel:
    """Serialize a model.

    Raises
    ------
    ValueError
        The model has no weights yet.
    """
    if not model.built:
        raise ValueError("The model is not built: begin it with keras.Input(shape), or call it once.")
    keras = importlib.import_module("keras")
    compiled, model.compiled = model.compiled, False  # compile arguments may contain lambdas
    try:
        config = keras.saving.serialize_keras_object(model)
    finally:
        model.compiled = compiled
    return PackedModel(config, model.get_weights(), keras.backend.backend())


def with_registered_names(custom_objects: Mapping[str, Any]) -> dict[str, Any]:
    """Add custom objects under their registered names: the registering decorator does not run in ranks."""
    keras = importlib.import_module("keras")
    registered = {keras.saving.get_registered_name(item): item for item in custom_objects.values() if callable(item)}
    return {**registered, **custom_objects}


def pack_optimizer(optimizer: Any) -> PackedOptimizer:
    """Serialize an optimizer, which is a Keras object or a name."""
    if isinstance(optimizer, str):
        return PackedOptimizer(optimizer, [])
    keras = importlib.import_module("keras")
    values = arrays(optimizer.variables) if optimizer.built else []
    return PackedOptimizer(keras.optimizers.serialize(optimizer), values)


def arrays(variables: Sequence[Any]) -> Arrays:
    """Return the values of variables."""
    keras = importlib.import_module("keras")
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def assign(variables: Sequence[Any], values: Arrays) -> None:
    """Assign values to variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def to_bytes(weights: Arrays, optimizer: Arrays) -> bytes:
    """Return a checkpoint in NumPy's npz format, without pickles."""
    out = io.BytesIO()
    named = {f"weight.{i}": value for i, value in enumerate(weights)}
    named |= {f"optimizer.{i}": value for i, value in enumerate(optimizer)}
    np.savez(out, **named)  # type: ignore[arg-type] # the stub allows a single keyword
    return out.getvalue()


def from_bytes(checkpoint: bytes) -> tuple[Arrays, Arrays]:
    """Return a checkpoint's weights, and the optimizer's values."""
    with np.load(io.BytesIO(checkpoint), allow_pickle=False) as file:
        parts = {
            kind: [file[f"{kind}.{i}"] for i in range(sum(name.startswith(f"{kind}.") for name in file.files))]
            for kind in ("weight", "optimizer")
        }
    return parts["weight"], parts["optimizer"]


def input_shapes(model: Any) -> list[tuple[int, ...]]:
    """Return the shape of each input, with -1 for variable dimensions."""
    return [tuple(-1 if size is None else size for size in tensor.shape) for tensor in model.inputs]


def load_forward(packed: PackedModel, custom_objects: Mapping[str, Any], floatx: str) -> Any:
    """Return a function for predictions, from arrays to arrays."""
    keras = ready(packed.backend)
    keras.config.set_floatx(floatx)
    model = packed.model(custom_objects)
    shapes = input_shapes(model)

    def forward(features: Arrays) -> list[npt.NDArray[Any]]:
        inputs = [array.reshape(shape).astype(floatx) for array, shape in zip(features, shapes, strict=True)]
        result = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
        outputs = list(result) if isinstance(result, list | tuple) else [result]
        return [np.asarray(keras.ops.convert_to_numpy(output)) for output in outputs]

    return forward
