"""Compression of gradients: a tensor is cast to fewer bits before it is reduced, and back to its own type after."""

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


class CastCompressor(Compressor):
    """Floating point travels as the type ``wire``; integers as they are. A framework says how it casts."""

    used = False  # in this process, by any framework: whoever gives advice asks
    wire: Any

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the tensor in another type."""

    @staticmethod
    @abstractmethod
    def is_floating(tensor: Any, /) -> bool:
        """Tell whether the tensor's elements are floating point."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return a copy of the type that travels, and the type to restore."""
        if not cls.is_floating(tensor):
            return tensor, None
        CastCompressor.used = True
        return cls.cast(tensor, cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its own type again."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class FP16Compressor(CastCompressor):
    """Arrays that have ``dtype`` and ``astype``, NumPy's and MXNet's: as float16 (up to 65504, 11 bits)."""

    wire = "float16"

    @staticmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the array in another type."""
        return tensor.astype(dtype, copy=False)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Tell whether the array's elements are floating point."""
        return bool(np.issubdtype(tensor.dtype, np.floating))


class Compression:
    """What ``compression=`` takes, of such arrays."""

    none = NoneCompressor
    fp16 = FP16Compressor
