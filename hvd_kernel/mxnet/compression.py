"""Compression of NDArrays: allreduce sends fewer bits."""

from __future__ import annotations

from hvd_kernel.frameworks.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
