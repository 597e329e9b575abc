"""Compression of torch tensors: what travels in an allreduce has fewer bits."""

from __future__ import annotations

import torch

from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(CastCompressor):
    """Floating point travels as float16 (up to 65504, 11 bits); integers as they are."""

    wire = torch.float16
    cast = staticmethod(torch.Tensor.to)
    is_floating = staticmethod(torch.is_floating_point)


class BF16Compressor(FP16Compressor):
    """Floating point travels as bfloat16 (float32's range, 8 bits: no overflow); integers as they are."""

    wire = torch.bfloat16


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
