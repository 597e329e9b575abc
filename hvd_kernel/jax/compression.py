"""Compression of JAX arrays: allreduce sends fewer bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Sends arrays as float16: up to 65504, 11 bits of precision."""

    wire: Any = jnp.float16

    @staticmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the array in another type."""
        return tensor.astype(dtype)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Return whether the array's elements are floating point."""
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating))


class BF16Compressor(FP16Compressor):
    """Sends arrays as bfloat16: float32's range, 8 bits of precision."""

    wire: Any = jnp.bfloat16


class Compression:
    """Values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
