"""Smaller numbers on the wire: a tensor is compressed before it is reduced, and restored after."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Compressor(ABC):
    """Two functions that belong together."""

    @staticmethod
    @abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor that travels, and what ``decompress`` needs to know."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Undo ``compress``."""


class NoneCompressor(Compressor):
    """Everything travels as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:  # noqa: ARG004 - the interface's
        """Return the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Floating point travels as float16 (up to 65504, 11 bits); integers as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return a float16 copy, and the type to restore."""
        return _narrowed(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its own type again."""
        return _restored(tensor, ctx)


class BF16Compressor(Compressor):
    """Floating point travels as bfloat16 (float32's range, 8 bits: no overflow); integers as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return a bfloat16 copy, and the type to restore."""
        return _narrowed(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its own type again."""
        return _restored(tensor, ctx)


def _narrowed(tensor: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.dtype | None]:
    return (tensor.to(kind), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)


def _restored(tensor: torch.Tensor, kind: torch.dtype | None) -> torch.Tensor:
    return tensor if kind is None else tensor.to(kind)


class Compression:
    """What ``compression=`` takes: ``none``, or what floating point travels as: ``fp16`` or ``bf16``.

    Integers travel as they are. The result has the tensor's own dtype.

    Examples
    --------
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), compression=hvd.Compression.fp16)
    tensor([1., 2.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
