"""Smaller numbers on the wire: a tensor is compressed before it is reduced, and restored after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf


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
        return _narrowed(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its own type again."""
        return _restored(tensor, ctx)


class BF16Compressor(Compressor):
    """Floating point travels as bfloat16 (float32's range, 8 bits: no overflow); integers as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return a bfloat16 copy, and the type to restore."""
        return _narrowed(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its own type again."""
        return _restored(tensor, ctx)


def _narrowed(tensor: Any, kind: Any) -> tuple[Any, Any]:
    given = tf.convert_to_tensor(tensor)
    return (tf.cast(given, kind), given.dtype) if given.dtype.is_floating else (given, None)


def _restored(tensor: Any, kind: Any) -> Any:
    return tensor if kind is None else tf.cast(tensor, kind)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
