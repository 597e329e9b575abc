"""What each rank of a Lightning estimator's fit does: a Trainer with our strategy on batches of its share."""

from __future__ import annotations

import copy
import io
import math
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch.utils.dlpack

import hvd_kernel.torch as hvd
from hvd_kernel.integrations.lightning import HorovodStrategy
from hvd_kernel.spark.common.datamodule import ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
from hvd_kernel.spark.torch.tensors import shapes

_NUMBERS = "biuf"
_QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def train(job: TrainingJob, module: Any, checkpoint: bytes | None) -> tuple[list[Any], bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0. ``checkpoint``: of a run that goes on."""
    hvd.init()
    module = copy.deepcopy(module)  # a backend may call this in the driver
    options = job.options
    if options["random_seed"] is not None:
        lightning.seed_everything(options["random_seed"], verbose=False)
    is_first = hvd.rank() == 0
    keep = _Keep(RunFiles(job), writes=is_first, speaks=job.speaks, finite=options["terminate_on_nan"])
    compression = options["gradient_compression"]
    given: dict[str, Any] = {
        "strategy": HorovodStrategy(**({"compression": compression} if compression else {})),
        "accelerator": "auto" if options["use_gpu"] else "cpu",
        "devices": options["num_gpus"] or 1,
        "max_epochs": options["epochs"] + _done(checkpoint),
        "accumulate_grad_batches": options["backward_passes_per_step"],
        "callbacks": [*options["callbacks"], keep],
        "logger": options["logger"] if is_first and options["logger"] is not None else False,
        "profiler": options["profiler"],
        "log_every_n_steps": options["log_every_n_steps"],
        "num_sanity_val_steps": 0,
        **_QUIET,
    }
    trainer = lightning.Trainer(**{**given, **(options["trainer_args"] or {})})
    with job.data(ParquetDataModule, hvd.rank(), hvd.size()) as data, tempfile.TemporaryDirectory() as folder:
        batches = iter(data.train_data())
        loaders: dict[str, Any] = {"train_dataloaders": Batches(job, lambda: batches, job.train_steps(hvd.size()))}
        if job.validation is not None and _validates(module):
            loaders["val_dataloaders"] = Batches(job, data.val_data, job.validation_steps(hvd.size()))
        trainer.fit(module, **loaders, **_resume(checkpoint, Path(folder)))
    return (keep.history, keep.run.result()) if is_first else None


class Batches:
    """Batches as Lightning takes them: a dict of tensors by column.

    Parameters
    ----------
    read
        Gives batches; those of a training go on where the last epoch has ended.
    steps
        How many are an epoch's, at most.
    """

    def __init__(self, job: TrainingJob, read: Callable[[], Any], steps: int) -> None:
        self._read, self._steps = read, steps
        given = shapes(job.options["input_shapes"], job.features, job.columns)
        self._shapes = dict(zip(job.features, given, strict=True)) if job.options["input_shapes"] else {}

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in islice(self._read(), self._steps):
            yield {name: self._tensor(name, values) for name, values in batch.items()}

    def _tensor(self, name: str, values: Any) -> Any:
        if isinstance(values, np.ndarray) and values.dtype.kind not in _NUMBERS:
            return values  # texts and the like are for the module's own code
        found = values if isinstance(values, torch.Tensor) else torch.utils.dlpack.from_dlpack(values)
        if found.dtype == torch.float64:
            found = found.float()
        return found.reshape(self._shapes[name]) if name in self._shapes else found


class _Keep(lightning.Callback):
    """Keeps what each epoch has come to, and shows it on the panel."""

    def __init__(self, run: RunFiles, *, writes: bool, speaks: bool, finite: bool) -> None:
        self.run = run
        self.history: list[dict[str, Any]] = []
        self._writes, self._speaks, self._finite = writes, speaks, finite

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a training whose loss is no number any more, on wish."""
        del trainer, pl_module, batch
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._finite and loss is not None and not math.isfinite(float(loss)):
            raise ValueError(f"The loss of batch {batch_idx} is {float(loss)}: terminate_on_nan ends the training.")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Average what was logged over the ranks, and write rank 0's checkpoint."""
        del pl_module
        mine = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        everyone = hvd.allgather_object(mine, name="estimator.metrics")
        means = {name: sum(theirs[name] for theirs in everyone if name in theirs) for name in mine}
        means = {name: value / sum(name in theirs for theirs in everyone) for name, value in means.items()}
        hvd.log(means, step=trainer.current_epoch)
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001 - as save_checkpoint, without a file
        if not self._writes:
            return
        told = {"epoch": trainer.current_epoch, **means}
        self.history.append(told)
        if self._speaks:
            print(told, flush=True)  # noqa: T201 - of the rank: it goes to the driver
        judged = next((means[name] for name in ("val_loss", "loss", "train_loss") if name in means), 0.0)
        self.run.epoch(trainer.current_epoch, judged, lambda: _packed(state), means)


def _packed(state: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def state_of(checkpoint: bytes) -> dict[str, Any]:
    """Return what a checkpoint holds; no code of the file is run."""
    found: dict[str, Any] = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    return found


def _done(checkpoint: bytes | None) -> int:
    """Return the number of epochs that a run has behind it."""
    return 0 if checkpoint is None else int(state_of(checkpoint)["epoch"]) + 1


def _resume(checkpoint: bytes | None, folder: Path) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    file = folder / "resume.ckpt"
    file.write_bytes(checkpoint)
    return {"ckpt_path": str(file)}


def _validates(module: Any) -> bool:
    return type(module).validation_step is not lightning.LightningModule.validation_step
