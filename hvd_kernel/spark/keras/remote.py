"""What each rank of a Keras estimator's fit does: ``model.fit`` on batches of its share, gradients averaged."""

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
from hvd_kernel.spark.common.data.reader import Batch
from hvd_kernel.spark.common.datamodule import DataModule, ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
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
    """How the model is to be trained."""

    optimizer: PackedOptimizer
    loss: Any
    loss_weights: Any
    metrics: Any
    custom_objects: Mapping[str, Any]


def train(job: TrainingJob, packed: PackedModel, how: Compiled, checkpoint: bytes | None) -> tuple[Any, bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0. ``checkpoint``: of a run that goes on."""
    hvd.init()
    if job.options["random_seed"] is not None:
        keras.utils.set_random_seed(job.options["random_seed"])
    model = packed.model(how.custom_objects)
    optimizer = how.optimizer.optimizer(model)
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
    model.compile(wrapped, loss=how.loss, loss_weights=how.loss_weights, metrics=how.metrics or None, jit_compile=False)
    with job.data(KerasDataModule, hvd.rank(), hvd.size()) as data, tempfile.TemporaryDirectory() as folder:
        return _fit(job, model, data, Path(folder))


class KerasDataModule(ParquetDataModule):
    """Parquet's batches; all ranks validate on the same number of them, for Keras takes steps."""

    def val_data(self) -> Any:
        """Return batches without an end."""
        return self.val_reader(even=True).endless()


def _fit(job: TrainingJob, model: Any, data: DataModule, folder: Path) -> tuple[Any, bytes] | None:
    size, is_first = hvd.size(), hvd.rank() == 0
    asked = job.options["checkpoint_callback"]
    run = RunFiles(job, keeps_best=isinstance(asked, hvd.callbacks.BestModelCheckpoint))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    callbacks += job.options["callbacks"]
    if is_first and asked is not None:
        asked.filepath = str(folder / "checkpoint.keras")
        callbacks.append(asked)
    callbacks.append(_Keep(run, asked, writes=is_first))
    shapes = input_shapes(model)
    validation: dict[str, Any] = {}
    if job.validation is not None:
        validation = {
            "validation_data": _split(job, data.val_data(), shapes),
            "validation_steps": job.validation_steps(size),
        }
    found = model.fit(
        _split(job, data.train_data(), shapes),
        steps_per_epoch=job.train_steps(size),
        epochs=job.options["epochs"],
        callbacks=callbacks,
        shuffle=False,  # the reader has
        verbose=(2 if job.speaks and is_first else 0),
        **validation,
    )
    if not is_first:
        return None
    if asked is not None and not isinstance(asked, hvd.callbacks.BestModelCheckpoint):
        job.store.sync_fn(job.run_id)(str(folder))
    return {name: [float(each) for each in values] for name, values in found.history.items()}, run.result()


class _Keep(_Callback):
    """Keeps what each epoch has come to, and shows it on the panel."""

    def __init__(self, run: RunFiles, asked: Any, *, writes: bool) -> None:
        super().__init__()
        self._run, self._writes = run, writes
        self._monitor = getattr(asked, "monitor", None)
        self._more_is_better = "acc" in (self._monitor or "") or getattr(asked, "mode", "auto") == "max"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write rank 0's checkpoint."""
        values = {name: float(value) for name, value in (logs or {}).items()}
        hvd.log(values, step=epoch)
        if self._writes:
            judged = values.get(self._monitor or "", values.get("val_loss", values.get("loss", 0.0)))
            self._run.epoch(epoch, -judged if self._more_is_better else judged, self._packed, _tagged(values))

    def _packed(self) -> bytes:
        """Return a checkpoint: of the learning rate that one rank would have."""
        optimizer = self.model.optimizer
        rate = _rate(optimizer)
        values = [
            value / hvd.size() if rate is not None and variable is rate else value
            for variable, value in zip(optimizer.variables, arrays(optimizer.variables), strict=True)
        ]
        return to_bytes(self.model.get_weights(), values)


def _split(job: TrainingJob, batches: Iterator[Batch], shapes: list[tuple[int, ...]]) -> Iterator[tuple[Any, ...]]:
    """Give Keras's form of the batches: inputs, labels, and the rows' weights where there are any."""
    for batch in batches:
        inputs = [_there(batch, name).reshape(shape) for name, shape in zip(job.features, shapes, strict=True)]
        labels = [_there(batch, name) for name in job.labels]
        if job.options["label_shapes"]:
            labels = [
                label.reshape(tuple(shape)) for label, shape in zip(labels, job.options["label_shapes"], strict=True)
            ]
        labels = [label.reshape(-1, 1) if label.ndim == 1 else label for label in labels]
        given: tuple[Any, ...] = (_alone(inputs), _alone(labels))
        yield given if job.weight is None else (*given, _there(batch, job.weight))


def _there(batch: Batch, name: str) -> npt.NDArray[Any]:
    array = np.asarray(batch[name])
    return array.astype(keras.config.floatx(), copy=False)


def _alone(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _rate(optimizer: Any) -> Any:
    """Return the variable of the learning rate; None: it follows a schedule."""
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
