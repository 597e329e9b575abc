"""JAX backend of Keras 3: gradients are reduced as NumPy arrays, outside of what JAX compiles.

The model is compiled with ``jit_compile=False``: a step that JAX compiles as a whole leaves no moment in
which other ranks could be heard.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.keras.backends.reduction import Together
from hvd_kernel.keras.flavour import array_of, keras


class NoneCompressor:
    """Everything travels as it is."""

    @staticmethod
    def compress(array: Any) -> tuple[Any, Any]:
        """Return the array itself."""
        return array, None

    @staticmethod
    def decompress(array: Any, ctx: Any) -> Any:
        """Return the array in its own type again."""
        return array if ctx is None else array.astype(ctx)


class FP16Compressor(NoneCompressor):
    """Floating point travels as float16; integers as they are."""

    @staticmethod
    def compress(array: Any) -> tuple[Any, Any]:
        """Return a float16 copy, and the type to restore."""
        return (array.astype(np.float16), array.dtype) if array.dtype.kind == "f" else (array, None)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor


class ArrayReduction(Together):
    """Reduces what becomes a NumPy array."""

    def _ready(self, grad: Any) -> Any:
        if not keras.ops.is_tensor(grad) or "Tracer" in type(grad).__name__:
            raise ValueError(
                "JAX would compile this training step as a whole, and it cannot compile the allreduce of the "
                "DistributedOptimizer: model.compile(..., jit_compile=False)."
            )
        return array_of(grad)

    def _back(self, grad: Any) -> Any:
        return keras.ops.convert_to_tensor(grad)

    def _zeros(self, source: Any) -> Any:
        return np.zeros(source.shape, array_of(source).dtype)

    def _mask(self, present: list[bool], beside: Any) -> Any:  # noqa: ARG002 - arrays are on no device
        return np.array(present, np.float32)

    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        how = self.settings
        return ops.grouped_allreduce(
            [np.ascontiguousarray(each) for each in tensors],
            name,
            how.op,
            1.0 / how.predivide,
            how.predivide,
            how.process_set,
        )
