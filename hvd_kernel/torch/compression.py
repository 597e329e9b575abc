"""Compression of torch tensors: allreduce sends fewer bits."""

from __future__ import annotations

import torch

from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Sends floating point tensors as float16 (up to 65504, 11 bits of precision), integers unchanged."""

    wire = torch.float16
    cast = staticmethod(torch.Tensor.to)
    is_floating = staticmethod(torch.is_floating_point)


class BF16Compressor(FP16Compressor):
    """Sends floating point tensors as bfloat16 (float32's range, 8 bits of precision), integers unchanged."""

    wire = torch.bfloat16


class Compression:
    """Values of ``compression=``: ``none``, or the type in which floating point tensors are sent: ``fp16``, ``bf16``.

    Integers are sent unchanged. The result has the tensor's dtype.

    Examples
    --------
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), compression=hvd.Compression.fp16)
    tensor([1., 2.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
