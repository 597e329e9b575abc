"""Training of a Keras estimator on a rank: ``model.fit`` on batches of its share, with averaged gradients.

Models and optimizers are sent as configuration and arrays. Keras is imported late: an executor first sets the backend
of the driver, in ``ready``.
"""

from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import hvd_kernel.keras as hvd
from hvd_kernel.spark.common.datamodule import Batch, DataModule, ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob

_Callback: Any = keras.callbacks.Callback


@dataclass(frozen=True)
class Compiled:
    """Compile arguments of the model."""

    optimizer: PackedOptimizer
    loss: Any
    loss_weights: Any
    metrics: Any
    custom_objects: Mapping[str, Any]


def train(
    job: TrainingJob, packed: PackedModel, compiled: Compiled, checkpoint: bytes | None
) -> tuple[Any, bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0. ``checkpoint``: state of a run to continue."""
    hvd.init()
    if job.options["random_seed"] is not None:
        keras.utils.set_random_seed(job.options["random_seed"])
    model = packed.model(compiled.custom_objects)
    optimizer = compiled.optimizer.optimizer(model)
    if checkpoint is not None:
        weights, values = from_bytes(checkpoint)
        model.set_weights(list(weights))
        optimizer.build(model.trainable_variables)
        assign(optimizer.variables, values)
    _scale(optimizer, hvd.size())
    compression = job.options["gradient_compression"]
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        backward_passes_per_step=job.options["backward_passes_per_step"],
        **({"compression": compression} if compression else {}),
    )
    model.compile(
        wrapped,
        loss=compiled.loss,
        loss_weights=compiled.loss_weights,
        metrics=compiled.metrics or None,
        jit_compile=False,
    )
    with job.data(KerasDataModule, hvd.rank(), hvd.size()) as data, tempfile.TemporaryDirectory() as folder:
        return _fit(job, model, data, Path(folder))


class KerasDataModule(ParquetDataModule):
    """Reads parquet; all ranks validate on the same number of batches, as Keras counts steps."""

    def val_data(self) -> Any:
        """Return an endless iterator over batches."""
        return self.val_reader(even=True).endless()


def _fit(job: TrainingJob, model: Any, data: DataModule, folder: Path) -> tuple[Any, bytes] | None:
    size, is_first = hvd.size(), hvd.rank() == 0
    checkpoint_callback = job.options["checkpoint_callback"]
    run = RunFiles(job, keeps_best=isinstance(checkpoint_callback, hvd.callbacks.BestModelCheckpoint))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    callbacks += job.options["callbacks"]
    if is_first and checkpoint_callback is not None:
        checkpoint_callback.filepath = str(folder / "checkpoint.keras")
        callbacks.append(checkpoint_callback)
    callbacks.append(_Keep(run, checkpoint_callback, writes=is_first))
    shapes = input_shapes(model)
    validation: dict[str, Any] = {}
    if job.validation is not None:
        validation = {
            "validation_data": _split(job, data.val_data(), shapes),
            "validation_steps": job.validation_steps(size),
        }
    fitted = model.fit(
        _split(job, data.train_data(), shapes),
        steps_per_epoch=job.train_steps(size),
        epochs=job.options["epochs"],
        callbacks=callbacks,
        shuffle=False,  # the reader shuffles
        verbose=(2 if job.is_verbose and is_first else 0),
        **validation,
    )
    if not is_first:
        return None
    if checkpoint_callback is not None and not isinstance(checkpoint_callback, hvd.callbacks.BestModelCheckpoint):
        job.store.sync_fn(job.run_id)(str(folder))
    return {name: [float(value) for value in values] for name, values in fitted.history.items()}, run.result()


class _Keep(_Callback):
    """Writes the results of each epoch, and shows them on the panel."""

    def __init__(self, run: RunFiles, checkpoint_callback: Any, *, writes: bool) -> None:
        super().__init__()
        self._run, self._writes = run, writes
        self._monitor = getattr(checkpoint_callback, "monitor", None)
        self._more_is_better = "acc" in (self._monitor or "") or getattr(checkpoint_callback, "mode", "auto") == "max"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write rank 0's checkpoint."""
        values = {name: float(value) for name, value in (logs or {}).items()}
        hvd.log(values, step=epoch)
        if self._writes:
            loss = values.get(self._monitor or "", values.get("val_loss", values.get("loss", 0.0)))
            self._run.epoch(epoch, -loss if self._more_is_better else loss, self._packed, _tagged(values))

    def _packed(self) -> bytes:
        """Return a checkpoint, with the learning rate for a single rank."""
        optimizer = self.model.optimizer
        rate = _rate(optimizer)
        values = [
            value / hvd.size() if rate is not None and variable is rate else value
            for variable, value in zip(optimizer.variables, arrays(optimizer.variables), strict=True)
        ]
        return to_bytes(self.model.get_weights(), values)


def _split(job: TrainingJob, batches: Iterator[Batch], shapes: list[tuple[int, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield batches for Keras: inputs, labels, and sample weights if there are any."""
    for batch in batches:
        inputs = [_column(batch, name).reshape(shape) for name, shape in zip(job.features, shapes, strict=True)]
        labels = [_column(batch, name) for name in job.labels]
        if job.options["label_shapes"]:
            labels = [
                label.reshape(tuple(shape)) for label, shape in zip(labels, job.options["label_shapes"], strict=True)
            ]
        labels = [label.reshape(-1, 1) if label.ndim == 1 else label for label in labels]
        pair: tuple[Any, ...] = (_unwrapped(inputs), _unwrapped(labels))
        yield pair if job.weight is None else (*pair, _column(batch, job.weight))


def _column(batch: Batch, name: str) -> npt.NDArray[Any]:
    array = np.asarray(batch[name])
    return array.astype(keras.config.floatx(), copy=False)


def _unwrapped(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _rate(optimizer: Any) -> Any:
    """Return the variable of the learning rate, or None for a schedule."""
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None


def _scale(optimizer: Any, size: int) -> None:
    rate = _rate(optimizer)
    if rate is not None:
        rate.assign(float(arrays([rate])[0]) * size)


def _tagged(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values by TensorBoard's tags: train/loss, validation/loss."""
    return {
        f"validation/{name.removeprefix('val_')}" if name.startswith("val_") else f"train/{name}": value
        for name, value in values.items()
    }


Arrays = Sequence[npt.NDArray[Any]]
# Serialized models and optimizers


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
