"""Smaller numbers on the wire: a tensor is compressed before it is reduced, and restored after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Compressor(ABC):
    """Two functions that belong together."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor that travels, and what ``decompress`` needs to know."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undo ``compress``."""


class NoneCompressor(Compressor):
    """Everything travels as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 - the interface's
        """Return the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Floating point travels as float16 (up to 65504, 11 bits); integers as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return a float16 copy, and the type to restore."""
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its own type again."""
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
