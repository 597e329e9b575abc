"""Inputs whose sums are exact in every data type, however they are added up, and the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

REDUCIBLE = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
CARRIED = (*REDUCIBLE, "int8", "int16", "uint16", "bool")
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 1, 9), (1000,), (100_003,))


def values(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Whole numbers 0..15, different on every rank and at every place."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count, dtype=np.int64) * 7 + rank * 5 + 1) % 16).reshape(shape)


def total(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.asarray(np.sum([values(shape, rank) for rank in range(size)], axis=0))


def tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(getattr(torch, dtype))
