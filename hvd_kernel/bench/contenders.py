"""Contenders of the benchmark: ours, and peers that can be imported here. Each reduces a tensor in place and blocks."""

from __future__ import annotations

import importlib.util
import os
from datetime import timedelta
from typing import Any, Protocol

import torch

from hvd_kernel.bench.api import hvd
from hvd_kernel.bench.report import LIMIT, OURS

OPS = ("sum", "min", "max", "product")


class Contender(Protocol):
    """What is measured. A contender that cannot do a dtype says so when it makes the buffer: TypeError."""

    name: str
    reduces: bool  # False: it is there for its time alone

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory as a user of this contender would have it."""

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce in place; return when done."""

    def release(self) -> None:
        """Take back buffers that nobody holds any more. Collective."""

    def close(self) -> None:
        """Leave. Collective."""


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
        """Reduce under one name, as training does step after step."""
        hvd.allreduce_(tensor, name=f"bench.{self.name}.{tensor.numel()}", op=self._ops[op])

    def release(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Left to the last one: the others' times travel through it."""


class OursShared(Ours):
    """hvd_kernel on buffers in memory that the ranks of a host share."""

    name = f"{OURS}, shared"

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the core."""
        memory: torch.Tensor = hvd.shared_empty(count, dtype)
        return memory

    def release(self) -> None:
        """Give the region back."""
        hvd.release_shared()


class Gloo:
    """torch.distributed's Gloo."""

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
        """Nothing to give back."""

    def close(self) -> None:
        """Leave the group."""
        self._distributed.destroy_process_group()


class Mpi:
    """mpi4py's Allreduce, of whichever MPI started the ranks."""

    reduces = True

    def __init__(self) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI

        self._mpi: Any = MPI
        self.name = f"mpi4py {MPI.get_vendor()[0]}"
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory of a dtype that MPI knows."""
        if dtype in {torch.float16, torch.bfloat16}:
            raise TypeError(dtype)
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce in place."""
        self._mpi.COMM_WORLD.Allreduce(self._mpi.IN_PLACE, tensor.numpy(), self._ops[op])

    def release(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """MPI ends with the process."""


class MemoryCopy:
    """A copy of each rank's buffer, all ranks at once: every allreduce has to read and to write as much."""

    name = LIMIT
    reduces = False

    def __init__(self) -> None:
        self._targets: dict[int, torch.Tensor] = {}

    def buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory, and have as much to copy it to."""
        self._targets[count] = torch.empty(count, dtype=dtype)
        return torch.empty(count, dtype=dtype)

    def allreduce(self, tensor: torch.Tensor, _op: str) -> None:
        """Copy."""
        self._targets[tensor.numel()].copy_(tensor)

    def release(self) -> None:
        """Let go of the targets."""
        self._targets.clear()

    def close(self) -> None:
        """There is nobody to leave."""


def under_mpi() -> bool:
    """Tell whether an MPI launcher started this process and mpi4py is there."""
    started = "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ
    return started and importlib.util.find_spec("mpi4py") is not None


def contenders(rank: int, size: int, *, shared: bool, limit: bool, beside_mpi: bool = False) -> list[Contender]:
    """Return those that are here, ours first; ``beside_mpi``: the MPI and ours alone. The same on all ranks."""
    if beside_mpi:
        return [Ours(), Mpi()]
    found: list[Contender] = [Ours()]
    if shared:
        found.append(OursShared())
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        found.append(Gloo(rank, size))
    if under_mpi():
        found.append(Mpi())
    if limit:
        found.append(MemoryCopy())
    return found
