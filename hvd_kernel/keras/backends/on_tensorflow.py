"""TensorFlow backend, of Keras 3 and Keras 2: gradients are reduced by operations in the graph of the training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_kernel.keras.backends.reduction import BackendReduction, OptimizerSettings
from hvd_kernel.tensorflow.compression import Compression
from hvd_kernel.tensorflow.gradient_reduction import Reduction as InGraph
from hvd_kernel.tensorflow.gradient_reduction import ReductionPlan, checked_groups
from hvd_kernel.tensorflow.library import argument_error

__all__ = ["Compression", "TensorflowReduction", "argument_error"]


class TensorflowReduction(BackendReduction):
    """Reduces tensors and IndexedSlices, eagerly or in a graph."""

    def __init__(self, settings: OptimizerSettings) -> None:
        super().__init__(settings)
        plan = ReductionPlan(
            name=settings.name,
            device_dense=settings.device_dense,
            device_sparse=settings.device_sparse,
            compression=settings.compression,
            sparse_as_dense=settings.sparse_as_dense,
            op=settings.op,
            predivide=settings.predivide,
            groups=checked_groups(0, settings.groups),
            process_set=settings.process_set,
        )
        self._in_graph = InGraph(plan, scale_local=settings.scale_local)

    def register_local(self, source: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        super().register_local(source)
        self._in_graph.register_local(source)

    def __call__(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients."""
        reduced: list[Any] = self._in_graph(grads, sources)
        return reduced
