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
    """Floating point travels as float16; integers as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return a float16 copy, and the type to restore."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its own type again."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
