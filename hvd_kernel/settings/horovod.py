"""Horovod's variables: values that are read as something else, and variables that are accepted and unused.

What an image or a script of Horovod's has left in the environment stops nothing: it is read as below, and rank 0 says
once what is done instead. Our own variables, HVD_*, are read as they stand.

Terms.
  reading  a value in the words of the tables; empty: the choice is left to the core
  instead  what is done, as a sentence without its dot; empty: what was asked for, and nobody needs to be told
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from hvd_kernel.settings.checks import flag, not_flag, switches_off
from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.table import SETTINGS

_NUMBER = re.compile(r"\s*[+-]?[0-9]+")
_OURS_FOR_GPUS = ("auto", "ring", "prefer-nccl", "staged")
_HOROVODS_CHOICES = ("mpi", "gloo")


class Reading(NamedTuple):
    """What a value is read as."""

    value: str
    instead: str = ""


@dataclass(frozen=True)
class HorovodValue:
    """One row: variables, how they are read, what is taken as it stands, and what becomes of the rest."""

    variables: tuple[str, ...]
    read: Callable[[str], Reading]
    taken: str
    rest: str


def boolean(text: str) -> Reading:
    """Read yes or no: its usual words, else as C's strtol does, by which Horovod reads it."""
    try:
        return Reading(flag(text))
    except ValueError:
        number = _NUMBER.match(text)
    if number is None:
        return Reading("0", "read as 0, as in Horovod, because it is not a number")
    return Reading(str(int(int(number[0]) != 0)))


def interface(text: str) -> Reading:
    """Read one interface, or the first of several that is here."""
    names = entries(text)
    if len(names) < 2:  # noqa: PLR2004 - several
        return Reading(names[0] if names else "")
    here = {name for _, name in socket.if_nameindex()}
    chosen = next((name for name in names if name in here), names[0])
    return Reading(chosen, f"a rank's links use one network interface: {chosen}, the first of them that is here")


def torus(text: str) -> Reading:
    """Read yes as a wish that cannot be granted."""
    told = "the two-dimensional torus is an algorithm of NCCL's: allreduce runs as HVD_ALLREDUCE_ALGORITHM says (auto)"
    return Reading("", told if boolean(text).value == "1" else "")


def gpu_operations(text: str) -> Reading:
    """Read our own words; NCCL, which Horovod was built with, is a wish that ranks on one GPU cannot be granted."""
    word = text.strip().lower()
    if word in _OURS_FOR_GPUS:
        return Reading(word)
    told = "the core chooses what carries out operations on GPUs, unless HVD_GPU_OPERATIONS says ring, nccl or staged"
    return Reading("prefer-nccl") if word == "nccl" else Reading("", told)


def gpu_allreduce(text: str) -> Reading:
    """Read what Horovod was built with, where HOROVOD_GPU_OPERATIONS says nothing; other words were for its build."""
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
    HorovodValue(("HOROVOD_TORUS_ALLREDUCE",), torus, "no", "HVD_ALLREDUCE_ALGORITHM says how allreduce runs"),
)


def read(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return an environment with these variables in the words of the tables, and a sentence for what was not taken."""
    values, told = dict(env), []
    for row in HOROVOD_VALUES:
        for name in row.variables:
            if given := env.get(name):
                values[name], instead = row.read(given)
                told += [f"{name}={given!r}: {instead}."] if instead else []
    return values, told


@dataclass(frozen=True)
class Unused:
    """Variables that are accepted and have no effect, and why."""

    variables: tuple[str, ...]
    why: str


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
