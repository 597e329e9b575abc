"""Compression of gradients: a tensor is cast to fewer bits before a reduction, and back to its type afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Compressor(ABC):
    """Interface of a compression algorithm."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to be sent, and the context for ``decompress``."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undo ``compress``."""


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 - the interface's
        """Return the tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Sends floating point tensors as the type ``wire``, others unchanged. Subclasses implement the cast."""

    used = False  # True once any framework has used it in this process; read by the performance advice
    wire: Any

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the tensor in another type."""

    @staticmethod
    @abstractmethod
    def is_floating(tensor: Any, /) -> bool:
        """Return whether the tensor's elements are floating point."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return a copy in the type to be sent, and the original type."""
        if not cls.is_floating(tensor):
            return tensor, None
        CastCompressor.used = True
        return cls.cast(tensor, cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original type."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class FP16Compressor(CastCompressor):
    """Sends arrays with ``dtype`` and ``astype`` (NumPy, MXNet) as float16: up to 65504, 11 bits of precision."""

    wire = "float16"

    @staticmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the array in another type."""
        return tensor.astype(dtype, copy=False)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Return whether the array's elements are floating point."""
        return bool(np.issubdtype(tensor.dtype, np.floating))


class Compression:
    """Values of ``compression=`` for NumPy and MXNet arrays."""

    none = NoneCompressor
    fp16 = FP16Compressor
