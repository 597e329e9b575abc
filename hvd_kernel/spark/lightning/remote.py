"""Training of a Lightning estimator on a rank: a Trainer with our strategy on batches of its share.

``Module`` is a LightningModule for a torch model with its optimizer and losses.
"""

from __future__ import annotations

import copy
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
import torch.utils.dlpack

import hvd_kernel.torch as hvd
from hvd_kernel.integrations.lightning import HorovodStrategy
from hvd_kernel.spark.common.datamodule import ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
from hvd_kernel.spark.torch.remote import as_list, fitted, outputs_of, shapes, weighted


class Module(lightning.LightningModule):
    """Trains a model like ``horovod.spark.torch.TorchEstimator``, with the params of that estimator."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Any,
        *,
        weights: Sequence[float],
        features: Sequence[str],
        labels: Sequence[str],
        sample_weight: str | None,
    ) -> None:
        super().__init__()
        self.model, self._torch_optimizer = model, optimizer
        self._losses = as_list(loss)
        self._names = (list(features), list(labels), sample_weight)
        self._weights = list(weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the model's outputs."""
        return self.model(*inputs)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the estimator."""
        return self._torch_optimizer

    def training_step(self, batch: Mapping[str, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del number
        return self._loss(batch, "loss")

    def validation_step(self, batch: Mapping[str, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del number
        return self._loss(batch, "val_loss")

    def _loss(self, batch: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        features, labels, weight = self._names
        outputs = outputs_of(self(*(batch[feature] for feature in features)))
        expected = fitted(outputs, [batch[label].float() for label in labels])
        rows = None if weight is None else batch[weight]
        loss = weighted(outputs, expected, self._losses, self._weights, rows)
        self.log(name, loss, on_step=False, on_epoch=True, batch_size=len(outputs[0]))
        return loss


_NUMBERS = "biuf"
_QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def train(job: TrainingJob, module: Any, checkpoint: bytes | None) -> tuple[list[Any], bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0. ``checkpoint``: state of a run to continue."""
    hvd.init()
    module = copy.deepcopy(module)  # a backend may call this in the driver
    options = job.options
    if options["random_seed"] is not None:
        lightning.seed_everything(options["random_seed"], verbose=False)
    is_first = hvd.rank() == 0
    results = _Results(RunFiles(job), writes=is_first, verbose=job.is_verbose, finite=options["terminate_on_nan"])
    compression = options["gradient_compression"]
    arguments: dict[str, Any] = {
        "strategy": HorovodStrategy(**({"compression": compression} if compression else {})),
        "accelerator": "auto" if options["use_gpu"] else "cpu",
        "devices": options["num_gpus"] or 1,
        "max_epochs": options["epochs"] + _done(checkpoint),
        "accumulate_grad_batches": options["backward_passes_per_step"],
        "callbacks": [*options["callbacks"], results],
        "logger": options["logger"] if is_first and options["logger"] is not None else False,
        "profiler": options["profiler"],
        "log_every_n_steps": options["log_every_n_steps"],
        "num_sanity_val_steps": 0,
        **_QUIET,
    }
    trainer = lightning.Trainer(**{**arguments, **(options["trainer_args"] or {})})
    with job.data(ParquetDataModule, hvd.rank(), hvd.size()) as data, tempfile.TemporaryDirectory() as folder:
        batches = iter(data.train_data())
        loaders: dict[str, Any] = {"train_dataloaders": Batches(job, lambda: batches, job.train_steps(hvd.size()))}
        if job.validation is not None and _validates(module):
            loaders["val_dataloaders"] = Batches(job, data.val_data, job.validation_steps(hvd.size()))
        trainer.fit(module, **loaders, **_resume(checkpoint, Path(folder)))
    return (results.history, results.run.result()) if is_first else None


class Batches:
    """Iterable over batches for Lightning: dicts of tensors by column.

    Parameters
    ----------
    read
        Function that returns batches; training batches continue from epoch to epoch.
    steps
        Maximum number of batches in an epoch.
    """

    def __init__(self, job: TrainingJob, read: Callable[[], Any], steps: int) -> None:
        self._read, self._steps = read, steps
        input_shapes = shapes(job.options["input_shapes"], job.features, job.columns)
        self._shapes = dict(zip(job.features, input_shapes, strict=True)) if job.options["input_shapes"] else {}

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in islice(self._read(), self._steps):
            yield {name: self._tensor(name, values) for name, values in batch.items()}

    def _tensor(self, name: str, values: Any) -> Any:
        if isinstance(values, np.ndarray) and values.dtype.kind not in _NUMBERS:
            return values  # text and other objects are passed to the module unchanged
        tensor = values if isinstance(values, torch.Tensor) else torch.utils.dlpack.from_dlpack(values)
        if tensor.dtype == torch.float64:
            tensor = tensor.float()
        return tensor.reshape(self._shapes[name]) if name in self._shapes else tensor


class _Results(lightning.Callback):
    """Writes the results of each epoch, and shows them on the panel."""

    def __init__(self, run: RunFiles, *, writes: bool, verbose: bool, finite: bool) -> None:
        self.run = run
        self.history: list[dict[str, Any]] = []
        self._writes, self._verbose, self._finite = writes, verbose, finite

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop the training if the loss is not finite and terminate_on_nan is set."""
        del trainer, pl_module, batch
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._finite and loss is not None and not math.isfinite(float(loss)):
            raise ValueError(f"The loss of batch {batch_idx} is {float(loss)}: terminate_on_nan ends the training.")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Average the logged metrics over the ranks, and write a checkpoint on rank 0."""
        del pl_module
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        by_rank = hvd.allgather_object(metrics, name="estimator.metrics")
        sums = {name: sum(of_rank[name] for of_rank in by_rank if name in of_rank) for name in metrics}
        means = {name: total / sum(name in of_rank for of_rank in by_rank) for name, total in sums.items()}
        hvd.log(means, step=trainer.current_epoch)
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001 - as save_checkpoint, without a file
        if not self._writes:
            return
        epoch = {"epoch": trainer.current_epoch, **means}
        self.history.append(epoch)
        if self._verbose:
            print(epoch, flush=True)  # noqa: T201 - output of a rank, which is forwarded to the driver
        loss = next((means[name] for name in ("val_loss", "loss", "train_loss") if name in means), 0.0)
        self.run.epoch(trainer.current_epoch, loss, lambda: _packed(state), means)


def _packed(state: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def state_of(checkpoint: bytes) -> dict[str, Any]:
    """Return the contents of a checkpoint, without running code of the file."""
    state: dict[str, Any] = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    return state


def _done(checkpoint: bytes | None) -> int:
    """Return the number of epochs that a run has completed."""
    return 0 if checkpoint is None else int(state_of(checkpoint)["epoch"]) + 1


def _resume(checkpoint: bytes | None, folder: Path) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    file = folder / "resume.ckpt"
    file.write_bytes(checkpoint)
    return {"ckpt_path": str(file)}


def _validates(module: Any) -> bool:
    return type(module).validation_step is not lightning.LightningModule.validation_step
