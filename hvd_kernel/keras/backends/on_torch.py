"""Torch backend of Keras 3: gradients are torch's tensors, and are reduced where they are."""

from __future__ import annotations

from typing import Any

from hvd_kernel.keras.backends.reduction import Together
from hvd_kernel.torch.compression import Compression
from hvd_kernel.torch.mpi_ops import grouped_allreduce

__all__ = ["Compression", "TorchReduction"]


class TorchReduction(Together):
    """Reduces torch's tensors, of the CPU or a GPU."""

    def _ready(self, grad: Any) -> Any:
        return grad

    def _back(self, grad: Any) -> Any:
        return grad

    def _zeros(self, source: Any) -> Any:
        return source.value.new_zeros(tuple(source.shape))

    def _mask(self, present: list[bool], beside: Any) -> Any:
        return beside.new_tensor([float(each) for each in present])

    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        how = self.settings
        return grouped_allreduce(
            tensors,
            name=name,
            op=how.op,
            prescale_factor=1.0 / how.predivide,
            postscale_factor=how.predivide,
            process_set=how.process_set,
        )
