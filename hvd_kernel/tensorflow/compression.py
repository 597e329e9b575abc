"""Compression of TensorFlow's tensors: what travels in an allreduce has fewer bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Floating point travels as float16 (up to 65504, 11 bits); integers as they are."""

    wire = tf.float16
    cast = staticmethod(tf.cast)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Tell whether the tensor's elements are floating point."""
        return bool(tensor.dtype.is_floating)

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return a copy of the type that travels, and the type to restore; of a variable or array too."""
        return super().compress(tf.convert_to_tensor(tensor))


class BF16Compressor(FP16Compressor):
    """Floating point travels as bfloat16 (float32's range, 8 bits: no overflow); integers as they are."""

    wire = tf.bfloat16


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
