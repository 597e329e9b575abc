"""Tensors of a batch, and losses and metrics of several labels, computed like Horovod's estimator. Pure functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
import torch.utils.dlpack
from torch import Tensor

from hvd_kernel.spark.common.columns import Column


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
