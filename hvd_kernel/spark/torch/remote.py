"""What each rank of a torch estimator's fit does: batches of its share through the model, gradients averaged."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import hvd_kernel.torch as hvd
from hvd_kernel.spark.common.datamodule import DataModule, ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
from hvd_kernel.spark.task import get_available_devices
from hvd_kernel.spark.torch import losses
from hvd_kernel.spark.torch.tensors import outputs_of, shapes, tensor

_SAID_EVERY = 10


def train(job: TrainingJob, model: Any, optimizer: Any, checkpoint: bytes | None) -> tuple[list[Any], bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0.

    Parameters
    ----------
    model, optimizer
        Sent together, so that the optimizer's parameters are those of the model.
    checkpoint
        Of a run that goes on.
    """
    hvd.init()
    model, optimizer = copy.deepcopy((model, optimizer))  # a backend may call this in the driver
    device = _device(bool(job.options["use_gpu"]))
    if job.options["random_seed"] is not None:
        torch.manual_seed(job.options["random_seed"])
    model.to(device)
    optimizer.load_state_dict(optimizer.state_dict())  # its state moves to where its parameters are
    if checkpoint is not None:
        load(checkpoint, model, optimizer)
    _scale(optimizer, hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = job.options["gradient_compression"]
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=job.options["backward_passes_per_step"],
        **({"compression": compression} if compression else {}),
    )
    with job.data(ParquetDataModule, hvd.rank(), hvd.size()) as data:
        return _Training(job, model, wrapped, device).all_epochs(data)


class _Training:
    def __init__(self, job: TrainingJob, model: Any, optimizer: Any, device: torch.device) -> None:
        self._job, self._model, self._optimizer, self._device = job, model, optimizer, device
        made = [make(model=model, optimizer=optimizer, hvd=hvd) for make in job.options["loss_constructors"] or ()]
        self._losses = losses.as_list(job.options["loss"]) or made
        self._minibatch = job.options["train_minibatch_fn"] or _minibatch
        self._shapes = shapes(job.options["input_shapes"], job.features, job.columns)

    def all_epochs(self, data: DataModule) -> tuple[list[Any], bytes] | None:
        job, run, history = self._job, RunFiles(self._job), []
        batches = iter(data.train_data())
        for number in range(job.options["epochs"]):
            told: dict[str, Any] = {"epoch": number, "train": self._train(batches, number)}
            if job.validation is not None:
                told["validation"] = self._validate(data)
            history.append(told)
            if hvd.rank() == 0:
                for each in job.options["callbacks"]:
                    each(told)
                if job.speaks:
                    print(told, flush=True)  # noqa: T201 - of the rank: it goes to the driver
                judged = told.get("validation", told["train"])["loss"]
                run.epoch(number, judged, partial(_packed, self._model, self._optimizer), _flat(told))
            _show({name.replace("/", "_"): value for name, value in _flat(told).items()}, number)
        return (history, run.result()) if hvd.rank() == 0 else None

    def _train(self, batches: Iterator[Any], epoch: int) -> dict[str, Any]:
        self._model.train()
        steps = self._job.train_steps(hvd.size())
        means = self._means()
        for at in range(steps):
            inputs, labels, rows = self._split(next(batches))
            outputs, loss = self._minibatch(
                self._model, self._optimizer, _fitted, partial(self._loss), inputs, labels, rows
            )
            outputs = outputs_of(outputs)
            means.add(loss, outputs, losses.fitted(outputs, labels))
            if at % _SAID_EVERY == 0:
                hvd.log(loss=loss, step=epoch * steps + at)
        return self._told(means)

    @torch.no_grad()
    def _validate(self, data: DataModule) -> dict[str, Any]:
        self._model.eval()
        means = self._means()
        asked = self._job.validation_steps(hvd.size())
        for batch in islice(data.val_data(), asked):
            inputs, labels, rows = self._split(batch)
            outputs, labels = _fitted(self._model(*inputs), labels)
            means.add(self._loss(outputs, labels, rows), outputs, labels)
        return self._told(means)

    def _loss(self, outputs: Any, labels: Any, rows: Tensor | None = None) -> Tensor:
        return losses.weighted(outputs_of(outputs), labels, self._losses, self._job.weights(), rows)

    def _means(self) -> losses.Means:
        return losses.Means(self._job.options["metrics"], self._job.labels)

    def _told(self, means: losses.Means) -> dict[str, Any]:
        """Return the means over the rows of all ranks."""
        return means.told(hvd.allreduce(means.sums, name="estimator.means", op=hvd.Sum))

    def _split(self, batch: Any) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Return a batch's inputs, labels and weights, on the device."""
        job = self._job
        inputs = [
            self._there(batch, name).reshape(shape) for name, shape in zip(job.features, self._shapes, strict=True)
        ]
        labels = [self._there(batch, name) for name in job.labels]
        if job.options["label_shapes"]:
            labels = [
                label.reshape(tuple(shape)) for label, shape in zip(labels, job.options["label_shapes"], strict=True)
            ]
        return inputs, labels, None if job.weight is None else self._there(batch, job.weight)

    def _there(self, batch: Any, name: str) -> Tensor:
        return tensor(batch[name], name).to(self._device)


def load(checkpoint: bytes, model: Any, optimizer: Any) -> None:
    """Put a checkpoint's values into a model and its optimizer; no code of the file is run."""
    state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _packed(model: Any, optimizer: Any) -> bytes:
    """Return a checkpoint: of the learning rate that one rank would have."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        if "lr" in group:
            group["lr"] /= hvd.size()
    out = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": state}, out)
    return out.getvalue()


def _scale(optimizer: Any, size: int) -> None:
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] *= size


def _minibatch(  # noqa: PLR0917 - Horovod's signature, which users' own have
    model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: Any, labels: Any, sample_weights: Any
) -> tuple[Any, Tensor]:
    """Take one step. A function of one's own (train_minibatch_fn) has this signature."""
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def _fitted(outputs: Any, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    found = outputs_of(outputs)
    return found, losses.fitted(found, labels)


def _device(use_gpu: bool) -> torch.device:
    """Return where this rank trains: the GPU that Spark has given its task, else that of its local rank.

    Raises
    ------
    RuntimeError
        Ranks have devices of several kinds.
    """
    mine = torch.device("cpu")
    if use_gpu and torch.cuda.is_available():
        given = get_available_devices()
        mine = torch.device("cuda", int(given[0]) if given else hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(mine)
    if len(set(hvd.allgather_object(mine.type, name="estimator.device"))) > 1:
        raise RuntimeError("All ranks don't have same device type!")
    return mine


def _flat(told: dict[str, Any]) -> dict[str, float]:
    """Return an epoch's values by tag: train/loss, validation/group_0_y."""
    flat = {}
    for stage in ("train", "validation"):
        found = told.get(stage)
        if found is not None:
            flat[f"{stage}/loss"] = found["loss"]
            flat |= {f"{stage}/{name}": value for group in found["all_metrics"] for name, value in group.items()}
    return flat


def _show(values: dict[str, float], epoch: int) -> None:
    with contextlib.suppress(ValueError):  # a metric that is no number is no figure either
        hvd.log(values, step=epoch)
