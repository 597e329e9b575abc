"""Arrays of a batch as float32 tensors with the input shapes of the model, for training and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch.utils.dlpack
from torch import Tensor

from hvd_kernel.spark.common.data.columns import Column


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
