"""Training of a Keras estimator on a rank: ``model.fit`` on batches of its share, with averaged gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import hvd_kernel.keras as hvd
from hvd_kernel.spark.common.datamodule import DataModule, ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
from hvd_kernel.spark.common.reader import Batch
from hvd_kernel.spark.keras.packed import (
    PackedModel,
    PackedOptimizer,
    arrays,
    assign,
    from_bytes,
    input_shapes,
    to_bytes,
)

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
