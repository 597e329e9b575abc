"""Training of a torch estimator on a rank: batches of its share, with averaged gradients."""

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
from hvd_kernel.spark.torch.losses import outputs_of, shapes, tensor

_LOG_EVERY = 10


def train(job: TrainingJob, model: Any, optimizer: Any, checkpoint: bytes | None) -> tuple[list[Any], bytes] | None:
    """Train on this rank; return history and checkpoint on rank 0.

    Parameters
    ----------
    model, optimizer
        Pickled together, so that the optimizer has the parameters of the model.
    checkpoint
        State of a run to continue.
    """
    hvd.init()
    model, optimizer = copy.deepcopy((model, optimizer))  # a backend may call this in the driver
    device = _device(bool(job.options["use_gpu"]))
    if job.options["random_seed"] is not None:
        torch.manual_seed(job.options["random_seed"])
    model.to(device)
    optimizer.load_state_dict(optimizer.state_dict())  # moves its state to the device of the parameters
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
        constructed = [
            create(model=model, optimizer=optimizer, hvd=hvd) for create in job.options["loss_constructors"] or ()
        ]
        self._losses = losses.as_list(job.options["loss"]) or constructed
        self._minibatch = job.options["train_minibatch_fn"] or _minibatch
        self._shapes = shapes(job.options["input_shapes"], job.features, job.columns)

    def all_epochs(self, data: DataModule) -> tuple[list[Any], bytes] | None:
        job, run, history = self._job, RunFiles(self._job), []
        batches = iter(data.train_data())
        for number in range(job.options["epochs"]):
            results: dict[str, Any] = {"epoch": number, "train": self._train(batches, number)}
            if job.validation is not None:
                results["validation"] = self._validate(data)
            history.append(results)
            if hvd.rank() == 0:
                for callback in job.options["callbacks"]:
                    callback(results)
                if job.is_verbose:
                    print(results, flush=True)  # noqa: T201 - output of a rank, which is forwarded to the driver
                loss = results.get("validation", results["train"])["loss"]
                run.epoch(number, loss, partial(_packed, self._model, self._optimizer), _flat(results))
            _show({name.replace("/", "_"): value for name, value in _flat(results).items()}, number)
        return (history, run.result()) if hvd.rank() == 0 else None

    def _train(self, batches: Iterator[Any], epoch: int) -> dict[str, Any]:
        self._model.train()
        steps = self._job.train_steps(hvd.size())
        means = self._means()
        for step in range(steps):
            inputs, labels, rows = self._split(next(batches))
            outputs, loss = self._minibatch(
                self._model, self._optimizer, _fitted, partial(self._loss), inputs, labels, rows
            )
            outputs = outputs_of(outputs)
            means.add(loss, outputs, losses.fitted(outputs, labels))
            if step % _LOG_EVERY == 0:
                hvd.log(loss=loss, step=epoch * steps + step)
        return self._reduce(means)

    @torch.no_grad()
    def _validate(self, data: DataModule) -> dict[str, Any]:
        self._model.eval()
        means = self._means()
        steps = self._job.validation_steps(hvd.size())
        for batch in islice(data.val_data(), steps):
            inputs, labels, rows = self._split(batch)
            outputs, labels = _fitted(self._model(*inputs), labels)
            means.add(self._loss(outputs, labels, rows), outputs, labels)
        return self._reduce(means)

    def _loss(self, outputs: Any, labels: Any, rows: Tensor | None = None) -> Tensor:
        return losses.weighted(outputs_of(outputs), labels, self._losses, self._job.weights(), rows)

    def _means(self) -> losses.Means:
        return losses.Means(self._job.options["metrics"], self._job.labels)

    def _reduce(self, means: losses.Means) -> dict[str, Any]:
        """Return the means over the rows of all ranks."""
        return means.as_dict(hvd.allreduce(means.sums, name="estimator.means", op=hvd.Sum))

    def _split(self, batch: Any) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Return a batch's inputs, labels and weights, on the device."""
        job = self._job
        inputs = [
            self._column(batch, name).reshape(shape) for name, shape in zip(job.features, self._shapes, strict=True)
        ]
        labels = [self._column(batch, name) for name in job.labels]
        if job.options["label_shapes"]:
            labels = [
                label.reshape(tuple(shape)) for label, shape in zip(labels, job.options["label_shapes"], strict=True)
            ]
        return inputs, labels, None if job.weight is None else self._column(batch, job.weight)

    def _column(self, batch: Any, name: str) -> Tensor:
        return tensor(batch[name], name).to(self._device)


def load(checkpoint: bytes, model: Any, optimizer: Any) -> None:
    """Load a checkpoint into a model and its optimizer, without running code of the file."""
    state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _packed(model: Any, optimizer: Any) -> bytes:
    """Return a checkpoint, with the learning rate for a single rank."""
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


def _minibatch(  # noqa: PLR0917 - Horovod's signature of train_minibatch_fn
    model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: Any, labels: Any, sample_weights: Any
) -> tuple[Any, Tensor]:
    """Train on a batch. A custom train_minibatch_fn has the same signature."""
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def _fitted(outputs: Any, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    tensors = outputs_of(outputs)
    return tensors, losses.fitted(tensors, labels)


def _device(use_gpu: bool) -> torch.device:
    """Return the device of this rank: the GPU that Spark has assigned to its task, or that of its local rank.

    Raises
    ------
    RuntimeError
        Ranks have different types of devices.
    """
    device = torch.device("cpu")
    if use_gpu and torch.cuda.is_available():
        gpus = get_available_devices()
        device = torch.device("cuda", int(gpus[0]) if gpus else hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if len(set(hvd.allgather_object(device.type, name="estimator.device"))) > 1:
        raise RuntimeError("All ranks don't have same device type!")
    return device


def _flat(results: dict[str, Any]) -> dict[str, float]:
    """Return an epoch's values by tag: train/loss, validation/group_0_y."""
    flat = {}
    for stage in ("train", "validation"):
        stage_results = results.get(stage)
        if stage_results is not None:
            flat[f"{stage}/loss"] = stage_results["loss"]
            flat |= {
                f"{stage}/{name}": value for group in stage_results["all_metrics"] for name, value in group.items()
            }
    return flat


def _show(values: dict[str, float], epoch: int) -> None:
    with contextlib.suppress(ValueError):  # not every metric is a number
        hvd.log(values, step=epoch)
