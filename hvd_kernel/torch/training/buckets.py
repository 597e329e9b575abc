"""Gradients in shared memory, of the host or of its GPUs: reduced where they lie, without a copy.

Terms.
  device  where a gradient is: on the host, or on one of this rank's devices, by the order in which they appear
  home    a gradient's place in shared memory, as a tensor of its own; ``param.grad`` becomes it in every round
  bucket  consecutive homes that travel as one operation, each tensor still by itself: which bucket a gradient is in
          does not change a bit of the result
  layout  the names of the gradients that have homes, in the order in which rank 0's first backward brought them
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hvd_kernel.core import ops, session, shared_memory
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch import devices
from hvd_kernel.torch.compression import Compressor, NoneCompressor
from hvd_kernel.torch.training.slots import COUNTS_USES

BUCKET_BYTES = 25 << 20
_ALIGN = 64  # a cache line: no two gradients in one


def shared_empty(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor in memory that the ranks of a host reduce in place, without a copy. Collective over all ranks.

    Each rank gets a part of its own; it goes when nothing points to it any more (see ``release_shared``).

    Parameters
    ----------
    shape
        Of the tensor, the same on every rank.
    dtype
        Of its elements.

    Returns
    -------
    Tensor
        On the CPU; its elements are not set.

    Raises
    ------
    ValueError
        Before ``init``.
    HorovodInternalError
        On every rank, when one of them has no shared memory, or too little.

    Examples
    --------
    >>> gradients = hvd.shared_empty((2, 3)).fill_(1.0)
    >>> hvd.allreduce_(gradients, op=hvd.Max)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = shared_memory.allocate(math.prod(extents) * dtype.itemsize)
    return _tensor(memory, extents, dtype)


def why_not(process_set: ProcessSet, compression: type[Compressor]) -> str:
    """Return what keeps gradients out of shared memory, "" when nothing is known to."""
    if process_set.size() != session.size():
        return "the process set is not all ranks"
    if session.local_size() != session.size():
        return "the ranks are on several hosts"
    if compression is not NoneCompressor:
        return "compressed gradients travel as copies"
    if not COUNTS_USES:
        return f"torch {torch.__version__} does not count what uses a tensor's memory"
    return ""


def are_wanted(process_set: ProcessSet, compression: type[Compressor]) -> bool:
    """Tell whether there is any use in homes, by what all ranks know alike."""
    return session.size() > 1 and not why_not(process_set, compression)


def may_have_home(param: Tensor) -> bool:
    """Tell whether this parameter's gradient is of a kind that shared memory can hold."""
    grad = param.grad
    return (
        param.requires_grad
        and (param.is_cpu or (session.size() > 1 and devices.is_taken(param)))
        and param.is_contiguous()
        and param.dtype.is_floating_point
        and param.numel() > 0
        and grad is not None
        and grad.layout is torch.strided
        and grad.dtype == param.dtype
    )


def devices_of(params: Sequence[Tensor]) -> list[str]:
    """Return where each parameter is, in words that are the same on all ranks."""
    seen: dict[torch.device, str] = {}
    return ["host" if param.is_cpu else seen.setdefault(param.device, f"device {len(seen)}") for param in params]


def agree(arrived: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the layout: rank 0's pairs of device and name, as far as every rank has them. Collective."""
    names: list[tuple[str, str]] = ops.broadcast_object(list(arrived), 0, "gradients.layout")
    if not names:
        return []
    mine = set(arrived)
    everywhere = ops.allreduce(np.array([name in mine for name in names], np.uint8), "gradients.common", ops.Min)
    return [name for name, common in zip(names, everywhere, strict=True) if common]


def homes_for(params: Sequence[Tensor]) -> list[Tensor]:
    """Return a home for each gradient, all on one device. Collective, with the same sizes in the same order."""
    ends = np.cumsum([_room(param) for param in params]).tolist()
    starts = [0, *ends[:-1]]
    if not params[0].is_cpu:
        return devices.parts_of(shared_memory.allocate_on_devices(ends[-1], params[0].get_device()), starts, params)
    memory = shared_memory.allocate(ends[-1])
    return [
        _tensor(memory[start : start + param.nbytes], tuple(param.shape), param.dtype)
        for start, param in zip(starts, params, strict=True)
    ]


def runs(params: Sequence[Tensor]) -> list[range]:
    """Cut into buckets: consecutive parameters of one type, of at most BUCKET_BYTES unless one alone is more."""
    found: list[range] = []
    begin, filled = 0, 0
    for number, param in enumerate(params):
        full = filled + param.nbytes > BUCKET_BYTES or param.dtype != params[begin].dtype
        if full and number > begin:
            found.append(range(begin, number))
            begin, filled = number, 0
        filled += param.nbytes
    return [*found, range(begin, len(params))] if params else []


def _room(param: Tensor) -> int:
    return -(-param.nbytes // _ALIGN) * _ALIGN


def _tensor(memory: memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory as a tensor with a storage of its own, so that saving it saves nothing else."""
    if not len(memory):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
