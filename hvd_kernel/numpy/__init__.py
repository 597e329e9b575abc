"""Horovod's API for NumPy's arrays, which needs no framework: ``import hvd_kernel.numpy as hvd``.

Operands are objects with ``__dlpack__``, ``__array_interface__`` or ``__cuda_array_interface__`` (CuPy, PyArrow, Numba,
Paddle), lists and numbers; results are of the same kind. Host memory is read without a copy. Arrays that would lose
their mask, labels or units (``MaskedArray``, pandas, sparse matrices) are refused with the remedy, and read-only memory
is never written.

Names that are not functions: ``Average``, ``Sum``, ``Adasum``, ``Min``, ``Max`` and ``Product`` are the values of
``op=``, Horovod's numbers 0 to 5; ``global_process_set`` is all ranks, the default of every ``process_set=``;
``elastic`` is a module, for training that survives a failure; ``__version__`` is the version of hvd_kernel, a str.
"""

from __future__ import annotations

from hvd_kernel import __version__, elastic
from hvd_kernel.core import basics
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.ops import allgather_object, barrier, broadcast_object, join
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.core.shared_memory import release_shared, shared_empty
from hvd_kernel.numpy.ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    "ProcessSet",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "bench",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "reducescatter",
    "release_shared",
    "remove_process_set",
    "shared_empty",
]
__all__ += basics.__all__
