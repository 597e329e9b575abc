"""Torch backend of Keras 3: gradients are torch tensors, and are reduced on their device."""

from __future__ import annotations

from typing import Any

from hvd_kernel.keras.backends.reduction import EagerReduction
from hvd_kernel.torch.compression import Compression
from hvd_kernel.torch.mpi_ops import grouped_allreduce

__all__ = ["Compression", "TorchReduction"]


class TorchReduction(EagerReduction):
    """Reduces torch tensors on the CPU or a GPU."""

    def _to_reducible(self, grad: Any) -> Any:
        return grad

    def _to_tensor(self, grad: Any) -> Any:
        return grad

    def _zeros(self, source: Any) -> Any:
        return source.value.new_zeros(tuple(source.shape))

    def _mask(self, present: list[bool], like: Any) -> Any:
        return like.new_tensor([float(is_present) for is_present in present])

    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        settings = self.settings
        return grouped_allreduce(
            tensors,
            name=name,
            op=settings.op,
            prescale_factor=1.0 / settings.predivide,
            postscale_factor=settings.predivide,
            process_set=settings.process_set,
        )
