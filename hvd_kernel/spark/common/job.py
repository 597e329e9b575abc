"""Description of a fit for the ranks of all frameworks: data, sizes, run. Does not import Spark, as ranks use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.common.datamodule import DataModule, ParquetDataModule, Source, datamodule_from_name
from hvd_kernel.spark.common.store import Store
from hvd_kernel.spark.shares import steps
from hvd_kernel.tracking.tensorboard import Scalar, scalar_event, version_event

BEST = ".best"


@dataclass(frozen=True)
class TrainingJob:
    """A training run; ``options`` are the estimator's params by name."""

    store: Store
    run_id: str
    index: int | None
    train: Source
    validation: Source | None
    features: Sequence[str]
    labels: Sequence[str]
    options: Mapping[str, Any]

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns by name."""
        return self.train.columns

    @property
    def weight(self) -> str | None:
        """The column of the sample weights, or None."""
        column: str | None = self.options["sample_weight_col"]
        return column

    @property
    def is_verbose(self) -> bool:
        """Return whether rank 0 reports progress."""
        return bool(self.options["verbose"])

    @property
    def keeps_best(self) -> bool:
        """Return whether the model of the best epoch is used, not that of the last epoch."""
        return bool(self.options["best_checkpoint"])

    def weights(self) -> list[float]:
        """Return the weight of each label's loss."""
        return list(self.options["loss_weights"] or [1 / len(self.labels)] * len(self.labels))

    def train_steps(self, size: int) -> int:
        """Return the number of batches in an epoch, on each rank."""
        limit: int | None = self.options["train_steps_per_epoch"]
        return limit or steps(self.train.rows, size, self.options["batch_size"])

    def validation_steps(self, size: int) -> int:
        """Return the maximum number of batches in a validation, on each rank."""
        limit: int | None = self.options["validation_steps_per_epoch"]
        return limit or (0 if self.validation is None else steps(self.validation.rows, size, self.val_batch))

    @property
    def val_batch(self) -> int:
        """Number of rows in a batch for validation."""
        return int(self.options["val_batch_size"] or self.options["batch_size"])

    def data(self, kind: type[ParquetDataModule], rank: int, size: int) -> DataModule:
        """Return this rank's data module: the estimator's, or one of class ``kind``."""
        option = self.options.get("data_module")
        cls = datamodule_from_name(option) if isinstance(option, str) else option or kind
        window: int | None = self.options["shuffle_buffer_size"]
        sources: dict[str, Any] = {}
        if issubclass(cls, ParquetDataModule):
            sources = {"train_source": self.train, "val_source": self.validation, "seed": self.options["random_seed"]}
        module: DataModule = cls(
            train_dir=self.store.get_train_data_path(self.index),
            val_dir=self.store.get_val_data_path(self.index),
            num_train_epochs=self.options["epochs"],
            has_val=self.validation is not None,
            train_batch_size=self.options["batch_size"],
            val_batch_size=self.val_batch,
            shuffle=bool(self.options["shuffle"]) and window != 0,
            shuffle_size=window,
            transform_fn=self.options["transformation_fn"],
            inmemory_cache_all=self.options["inmemory_cache_all"],
            cur_shard=rank,
            shard_count=size,
            schema_fields=[*self.features, *self.labels, *filter(None, [self.weight])],
            storage_options=self.store.description().get("storage_options"),
            steps_per_epoch_train=self.train_steps(size),
            steps_per_epoch_val=self.validation_steps(size),
            verbose=self.is_verbose,
            **sources,
        )
        return module


class RunFiles:
    """Writes a run's files on rank 0: the last checkpoint, the best checkpoint, TensorBoard's events."""

    def __init__(self, job: TrainingJob, *, keeps_best: bool = False) -> None:
        self._job = job
        self._keeps_best = keeps_best or job.keeps_best
        self._events = [version_event(time.time())]
        self._least: float | None = None
        self.last, self.best = b"", b""

    def epoch(self, number: int, loss: float, checkpoint: Callable[[], bytes], values: Mapping[str, float]) -> None:
        """Write the results of an epoch: its checkpoint, its loss, which selects the best epoch, and values by tag."""
        self.last = checkpoint()
        is_best = self._least is None or loss < self._least
        if is_best:
            self._least, self.best = loss, self.last
        store, folder = self._job.store, self._job.store.get_checkpoint_path(self._job.run_id)
        self._events += [scalar_event(Scalar(time.time(), number, tag, value)) for tag, value in values.items()]
        if folder is None:
            return
        file = f"{folder}/{store.get_checkpoint_filename()}"
        store.write(file, self.last)
        if is_best and self._keeps_best:
            store.write(file + BEST, self.last)
        store.write(f"{store.get_logs_path(self._job.run_id)}/events.out.tfevents.hvd", b"".join(self._events))

    def result(self) -> bytes:
        """Return the checkpoint of the resulting model."""
        return self.best if self._keeps_best else self.last


def checkpoint_of(store: Store, run_id: str) -> bytes | None:
    """Return the checkpoint of a run, or None if the store has no checkpoint."""
    folder = store.get_checkpoint_path(run_id)
    file = f"{folder}/{store.get_checkpoint_filename()}"
    return store.read(file) if folder is not None and store.exists(file) else None
