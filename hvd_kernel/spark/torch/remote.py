"""Training of a torch estimator on a rank: batches of its share, with averaged gradients."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy.typing as npt
import torch
import torch.utils.dlpack
from torch import Tensor

import hvd_kernel.torch as hvd
from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.common.datamodule import DataModule, ParquetDataModule
from hvd_kernel.spark.common.job import RunFiles, TrainingJob
from hvd_kernel.spark.task import get_available_devices

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
        self._losses = as_list(job.options["loss"]) or constructed
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
            means.add(loss, outputs, fitted(outputs, labels))
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
        return weighted(outputs_of(outputs), labels, self._losses, self._job.weights(), rows)

    def _means(self) -> Means:
        return Means(self._job.options["metrics"], self._job.labels)

    def _reduce(self, means: Means) -> dict[str, Any]:
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
    return tensors, fitted(tensors, labels)


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


# Tensors of a batch, and losses and metrics of several labels, computed like Horovod's estimator. Pure functions.


def shapes(
    input_shapes: Sequence[Sequence[int]] | None, features: Sequence[str], columns: Mapping[str, Column]
) -> list[tuple[int, ...]]:
    """Return the shape of each input: ``input_shapes``, or (-1, *shape of the column), with (1,) for a number."""
    if input_shapes:
        return [tuple(shape) for shape in input_shapes]
    return [(-1, *(columns[name].shape or (1,))) for name in features]


def tensor(array: npt.NDArray[Any] | Tensor, name: str) -> Tensor:
    """Return a column as float32; a float32 array is not copied (DLPack).

    Raises
    ------
    ValueError
        The column does not contain numbers.
    """
    if isinstance(array, Tensor):
        return array.float()
    if array.dtype == object:
        raise ValueError(
            f"Column {name} holds no numbers, or lists of several lengths: make some with transformation_fn, or leave "
            "it out."
        )
    if array.dtype == bool:
        array = array.astype("float32")
    return torch.utils.dlpack.from_dlpack(array).float()


def outputs_of(result: Any) -> list[Tensor]:
    """Return a model's outputs as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]


Function = Callable[..., Tensor]


def as_list(functions: Any) -> list[Function]:
    """Return a function or a sequence of functions as a list."""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, list | tuple) else [functions]


def for_each(functions: Sequence[Function], number: int) -> list[Function]:
    """Return a function for each output; a single function is used for all outputs."""
    return list(functions) * number if len(functions) == 1 else list(functions)


def fitted(outputs: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Tensor]:
    """Reshape labels to the shapes of the outputs, if they have the same number of elements."""
    return [
        label.reshape(output.shape) if output.shape.numel() == label.shape.numel() else label
        for output, label in zip(outputs, labels, strict=False)
    ]


def weighted(
    outputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    losses: Sequence[Function],
    weights: Sequence[float],
    rows: Tensor | None,
) -> Tensor:
    """Return the weighted sum of the labels' losses; ``rows`` has the weight of each row.

    A row's weight multiplies its loss, and the mean is over the rows: weights need not add up to one.
    """
    total = torch.zeros((), device=outputs[0].device)
    for output, label, loss, weight in zip(outputs, labels, for_each(losses, len(outputs)), weights, strict=False):
        if rows is None:
            total = total + loss(output, label) * weight
        else:
            by_row = _by_row(loss, output, label).reshape(len(rows), -1).mean(dim=1)
            total = total + (by_row * rows).mean() * weight
    return total


def _by_row(loss: Function, output: Tensor, label: Tensor) -> Tensor:
    """Return the loss of each row, for a module of torch.nn or a function of torch.nn.functional."""
    if isinstance(loss, torch.nn.Module):
        unreduced = copy.copy(loss)
        vars(unreduced)["reduction"] = "none"
        losses: Tensor = unreduced(output, label)
        return losses
    return loss(output, label, reduction="none")


class Means:
    """Means over the rows of an epoch: the loss, and each metric of each label (``group_0_label``)."""

    def __init__(self, metrics: Sequence[Sequence[Function]], labels: Sequence[str]) -> None:
        self._groups = [as_list(group) for group in metrics]
        self.names = [[f"group_{i}_{label}" for label in labels] for i in range(len(self._groups))]
        self.sums = torch.zeros(2 + len(self._groups) * len(labels), dtype=torch.float64)

    @torch.no_grad()
    def add(self, loss: Tensor, outputs: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
        """Add a batch."""
        values = [torch.as_tensor(loss)]
        for group, names in zip(self._groups, self.names, strict=True):
            functions = for_each(group, len(names))
            values += [
                torch.as_tensor(function(output, label)).float().mean()
                for function, output, label in zip(functions, outputs, labels, strict=False)
            ]
        rows = len(outputs[0])
        self.sums[0] += rows
        self.sums[1:] += torch.stack([value.detach().double().cpu() for value in values]) * rows

    def as_dict(self, sums: Tensor) -> dict[str, Any]:
        """Return the means in Horovod's format, from the sums over all ranks."""
        means = iter((sums[1:] / sums[0]).tolist())
        return {"loss": next(means), "all_metrics": [{name: next(means) for name in names} for names in self.names]}
