"""Horovod's variables: values that are read as other values, and variables that are accepted without effect.

No value that an image or a script of Horovod's sets is an error: it is read as below, and rank 0 logs each substitution
once. Our own variables, HVD_*, are read without substitution.

Terms.
  reading  a value in the form of the tables; empty: the core chooses
  instead  description of a substitution, as a sentence without its full stop; empty: no message is needed
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.setting import flag, not_flag, switches_off
from hvd_kernel.settings.table import SETTINGS

_NUMBER = re.compile(r"\s*[+-]?[0-9]+")
_OURS_FOR_GPUS = ("auto", "ring", "prefer-nccl", "staged")
_HOROVODS_CHOICES = ("mpi", "gloo")


class Reading(NamedTuple):
    """Result of reading a value."""

    value: str
    instead: str = ""


@dataclass(frozen=True)
class HorovodValue:
    """One row: variables, their reader, the values read unchanged, and the reading of all other values."""

    variables: tuple[str, ...]
    read: Callable[[str], Reading]
    taken: str
    rest: str


def boolean(text: str) -> Reading:
    """Read yes or no: the usual words, otherwise as C's strtol, which Horovod uses."""
    try:
        return Reading(flag(text))
    except ValueError:
        number = _NUMBER.match(text)
    if number is None:
        return Reading("0", "read as 0, as in Horovod, because it is not a number")
    return Reading(str(int(int(number[0]) != 0)))


def interface(text: str) -> Reading:
    """Read one interface, or the first of several that exists on this host."""
    names = entries(text)
    if len(names) < 2:  # noqa: PLR2004 - several
        return Reading(names[0] if names else "")
    here = {name for _, name in socket.if_nameindex()}
    chosen = next((name for name in names if name in here), names[0])
    return Reading(chosen, f"a rank's links use one network interface: {chosen}, the first of them that is here")


def torus(text: str) -> Reading:
    """Read yes as a request that cannot be fulfilled."""
    instead = "the two-dimensional torus is NCCL's algorithm: allreduce runs as HVD_ALLREDUCE_ALGORITHM says (auto)"
    return Reading("", instead if boolean(text).value == "1" else "")


def gpu_operations(text: str) -> Reading:
    """Read our own words; NCCL, Horovod's build option, is only preferred: ranks that share a GPU cannot use it."""
    word = text.strip().lower()
    if word in _OURS_FOR_GPUS:
        return Reading(word)
    instead = "the core chooses the backend of operations on GPUs, unless HVD_GPU_OPERATIONS is ring, nccl or staged"
    return Reading("prefer-nccl") if word == "nccl" else Reading("", instead)


def gpu_allreduce(text: str) -> Reading:
    """Read the build option of Horovod, used if HOROVOD_GPU_OPERATIONS is not set; only NCCL matters at run time."""
    return Reading("prefer-nccl" if text.strip().lower() == "nccl" else "")


def _one_of_horovods(instead: str) -> Callable[[str], Reading]:
    def read(text: str) -> Reading:
        return Reading("", "" if text.strip().lower() in _HOROVODS_CHOICES else instead)

    return read


def _booleans() -> tuple[str, ...]:
    names = chain.from_iterable(row.variables for row in SETTINGS if row.check in {flag, not_flag, switches_off})
    return tuple(name for name in names if name.startswith("HOROVOD_"))


HOROVOD_VALUES = (
    HorovodValue(
        _booleans(),
        boolean,
        "0, 1, true, false, yes, no, on, off; another number: yes unless it is 0",
        "no, as Horovod reads it",
    ),
    HorovodValue(("HOROVOD_GLOO_IFACE",), interface, "one network interface", "the first of several that exists here"),
    HorovodValue(
        ("HOROVOD_GPU_OPERATIONS",),
        gpu_operations,
        "auto, ring, prefer-nccl, staged; NCCL, which Horovod was built with: prefer-nccl",
        "the core chooses",
    ),
    HorovodValue(
        ("HOROVOD_GPU_ALLREDUCE",),
        gpu_allreduce,
        "NCCL: prefer-nccl, for all operations",
        "built Horovod: the core chooses",
    ),
    HorovodValue(
        ("HOROVOD_CPU_OPERATIONS",),
        _one_of_horovods("the core's own operations run; HVD_TRANSPORT=mpi sends through MPI"),
        "MPI, Gloo: the core's own operations run for both",
        "the same; oneCCL is not used",
    ),
    HorovodValue(
        ("HOROVOD_CONTROLLER",),
        _one_of_horovods("ranks negotiate through the core itself; HVD_BOOTSTRAP=mpi or tcp sets the rendezvous"),
        "MPI, Gloo: ranks agree through the core itself with both",
        "the same",
    ),
    HorovodValue(("HOROVOD_TORUS_ALLREDUCE",), torus, "no", "HVD_ALLREDUCE_ALGORITHM sets the algorithm of allreduce"),
)


def read(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return an environment with these variables in the form of the tables, and a sentence per substitution."""
    values, substitutions = dict(env), []
    for row in HOROVOD_VALUES:
        for name in row.variables:
            if text := env.get(name):
                values[name], instead = row.read(text)
                substitutions += [f"{name}={text!r}: {instead}."] if instead else []
    return values, substitutions


@dataclass(frozen=True)
class Unused:
    """Variables that are accepted without effect, and why."""

    variables: tuple[str, ...]
    reason: str


def _all(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


UNUSED = (
    Unused(
        _all("HOROVOD_", "LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME"),
        "which ranks share a host is detected at the rendezvous (HVD_HOST overrides it)",
    ),
    Unused(
        ("HOROVOD_MPI_THREADS_DISABLE",), "MPI only starts and links the ranks; the core knows which thread may call it"
    ),
    Unused(("HOROVOD_ADASUM_MPI_CHUNK_SIZE",), "Adasum runs on the core's own links, not on MPI"),
    Unused(("HOROVOD_CCL_CACHE",), "oneCCL is not used"),
    Unused(
        _all("HOROVOD_", "BATCH_D2D_MEMCOPIES NUM_NCCL_STREAMS ENABLE_ASYNC_COMPLETION DISABLE_NVTX_RANGES"),
        "tunes how Horovod uses NCCL and CUDA",
    ),
    Unused(("HOROVOD_ENABLE_XLA_OPS",), "tunes TensorFlow's XLA operations; there is no TensorFlow front end"),
    Unused(
        _all("HOROVOD_SPARK_", "START_TIMEOUT USE_LOCAL_RANK_GPU_INDEX PYTHONPATH WORK_DIR"),
        "read by Horovod's Spark launcher",
    ),
    Unused(
        (
            *_all("HOROVOD_WITH_", "PYTORCH TENSORFLOW MXNET MPI GLOO NVTX"),
            *_all("HOROVOD_WITHOUT_", "PYTORCH TENSORFLOW MXNET MPI GLOO NVTX"),
            *_all("HOROVOD_GPU_", "ALLGATHER BROADCAST ALLTOALL REDUCESCATTER"),
            *_all("HOROVOD_NCCL_", "HOME INCLUDE LIB LINK"),
            *_all("HOROVOD_", "GPU CUDA_HOME ROCM_HOME BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST ALLOW_MIXED_GPU_IMPL"),
            *_all("HOROVOD_", "CMAKE MPICXX_SHOW DEBUG SKIP_COMPILE LOCAL_VERSION"),
        ),
        "builds Horovod: the core is compiled against no framework, no MPI and no CUDA, so there is nothing to choose",
    ),
    Unused(("HOROVOD_TEST_GPU", "HOROVOD_MIXED_INSTALL"), "read by Horovod's own tests"),
)
