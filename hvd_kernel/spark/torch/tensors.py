"""Arrays of a batch as tensors, for training and for predictions alike: float32, of the shapes that the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch.utils.dlpack
from torch import Tensor

from hvd_kernel.spark.common.data.columns import Column


def shapes(
    given: Sequence[Sequence[int]] | None, features: Sequence[str], columns: Mapping[str, Column]
) -> list[tuple[int, ...]]:
    """Return the shape of each input: as given, else -1 x what the column holds, 1 for a number."""
    if given:
        return [tuple(each) for each in given]
    return [(-1, *(columns[name].shape or (1,))) for name in features]


def tensor(array: npt.NDArray[Any] | Tensor, name: str) -> Tensor:
    """Return a column as float32; an array of float32 is not copied (DLPack).

    Raises
    ------
    ValueError
        It holds no numbers.
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


def outputs_of(found: Any) -> list[Tensor]:
    """Return a model's outputs as a list."""
    return list(found) if isinstance(found, tuple | list) else [found]
