"""Compression of TensorFlow's tensors: allreduce sends fewer bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Sends floating point tensors as float16 (up to 65504, 11 bits of precision), integers unchanged."""

    wire = tf.float16
    cast = staticmethod(tf.cast)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Return whether the tensor's elements are floating point."""
        return bool(tensor.dtype.is_floating)

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return a copy in the type to be sent, and the original type; also of a variable or array."""
        return super().compress(tf.convert_to_tensor(tensor))


class BF16Compressor(FP16Compressor):
    """Sends floating point tensors as bfloat16 (float32's range, 8 bits of precision), integers unchanged."""

    wire = tf.bfloat16


class Compression:
    """Values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
