"""Contenders of the benchmark: ours and other installed implementations, with a blocking in-place allreduce."""

from __future__ import annotations

import importlib.util
import os
from datetime import timedelta
from typing import Any, Protocol

import torch

import hvd_kernel.torch
from hvd_kernel.bench.report import LIMIT, OURS

hvd: Any = hvd_kernel.torch  # its re-exports are not visible to type checkers


OPS = ("sum", "min", "max", "product")


class Contender(Protocol):
    """Interface of a contender. ``buffer`` raises TypeError for a dtype that it does not support."""

    name: str
    reduces: bool  # False: only its time is used

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory as a user of this contender allocates it."""

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce in place; return when the result is complete."""

    def release(self) -> None:
        """Release unused buffers. Collective."""

    def close(self) -> None:
        """Shut down. Collective."""


class Ours:
    """hvd_kernel on private buffers."""

    name = OURS
    reduces = True

    def __init__(self) -> None:
        self._ops = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory."""
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce under the same name in each call, as in training."""
        hvd.allreduce_(tensor, name=f"bench.{self.name}.{tensor.numel()}", op=self._ops[op])

    def release(self) -> None:
        """No effect: the memory is private."""

    def close(self) -> None:
        """No effect: the benchmark uses the session until its end."""


class OursShared(Ours):
    """hvd_kernel on buffers in memory shared by the ranks of a host."""

    name = f"{OURS}, shared"

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return shared memory of the core."""
        memory: torch.Tensor = hvd.shared_empty(count, dtype)
        return memory

    def release(self) -> None:
        """Release the shared memory."""
        hvd.release_shared()


class Gloo:
    """The Gloo backend of torch.distributed."""

    name = "torch gloo"
    reduces = True

    def __init__(self, rank: int, size: int) -> None:
        self._distributed: Any = torch.distributed
        self._distributed.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
        self._ops = {op: getattr(self._distributed.ReduceOp, op.upper()) for op in OPS}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory."""
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce in place."""
        self._distributed.all_reduce(tensor, self._ops[op])

    def release(self) -> None:
        """No effect: the memory is private."""

    def close(self) -> None:
        """Destroy the process group."""
        self._distributed.destroy_process_group()


class Mpi:
    """mpi4py's Allreduce, with the MPI that started the ranks."""

    reduces = True

    def __init__(self) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI

        self._mpi: Any = MPI
        self.name = f"mpi4py {MPI.get_vendor()[0]}"
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory; MPI has no 16-bit floating point."""
        if dtype in {torch.float16, torch.bfloat16}:
            raise TypeError(dtype)
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce in place."""
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, tensor.numpy(), self._ops[op])

    def release(self) -> None:
        """No effect: the memory is private."""

    def close(self) -> None:
        """No effect: MPI shuts down with the process."""


class MemoryCopy:
    """A copy of the buffer on all ranks at once: every allreduce reads and writes at least as much."""

    name = LIMIT
    reduces = False

    def __init__(self) -> None:
        self._targets: dict[int, torch.Tensor] = {}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory, and allocate the target of the copy."""
        self._targets[count] = torch.empty(count, dtype=dtype)
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, _op: str) -> None:
        """Copy the buffer."""
        self._targets[tensor.numel()].copy_(tensor)

    def release(self) -> None:
        """Release the targets."""
        self._targets.clear()

    def close(self) -> None:
        """No effect."""


def under_mpi() -> bool:
    """Return whether an MPI launcher started this process and mpi4py is installed."""
    started = "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ
    return started and importlib.util.find_spec("mpi4py") is not None


def contenders(rank: int, size: int, *, shared: bool, limit: bool, beside_mpi: bool = False) -> list[Contender]:
    """Return the available contenders, ours first, with ``beside_mpi`` only ours and MPI. The same on all ranks."""
    if beside_mpi:
        return [Ours(), Mpi()]
    available: list[Contender] = [Ours()]
    if shared:
        available.append(OursShared())
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        available.append(Gloo(rank, size))
    if under_mpi():
        available.append(Mpi())
    if limit:
        available.append(MemoryCopy())
    return available
