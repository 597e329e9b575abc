"""JAX backend of Keras 3: gradients are reduced as NumPy arrays, outside of what JAX compiles.

The model is compiled with ``jit_compile=False``: a step that JAX compiles as a whole leaves no moment in
which other ranks could be heard.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.frameworks.compression import Compression  # noqa: F401 - the backend's, as in the others
from hvd_kernel.keras.backends.reduction import Together
from hvd_kernel.keras.flavour import array_of, keras


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
