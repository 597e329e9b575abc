"""Horovod's variables that change nothing here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Idle:
    """Variables that are accepted and have no effect, and why."""

    variables: tuple[str, ...]
    why: str


def _all(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


IDLE = (
    Idle(
        _all("HOROVOD_", "LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME"),
        "which ranks share a host is found out when they meet (HVD_HOST overrides it)",
    ),
    Idle(
        ("HOROVOD_MPI_THREADS_DISABLE",), "MPI only starts and links the ranks; the core knows which thread may call it"
    ),
    Idle(("HOROVOD_ADASUM_MPI_CHUNK_SIZE",), "Adasum runs on the core's own links, not on MPI"),
    Idle(("HOROVOD_CCL_CACHE",), "oneCCL is not used"),
    Idle(
        _all("HOROVOD_", "BATCH_D2D_MEMCOPIES NUM_NCCL_STREAMS ENABLE_ASYNC_COMPLETION DISABLE_NVTX_RANGES"),
        "tunes how Horovod uses NCCL and CUDA",
    ),
    Idle(("HOROVOD_ENABLE_XLA_OPS",), "tunes TensorFlow's XLA operations; there is no TensorFlow front end"),
    Idle(
        _all("HOROVOD_SPARK_", "START_TIMEOUT USE_LOCAL_RANK_GPU_INDEX PYTHONPATH WORK_DIR"),
        "read by Horovod's Spark launcher",
    ),
    Idle(
        (
            *_all("HOROVOD_WITH_", "PYTORCH TENSORFLOW MXNET MPI GLOO NVTX"),
            *_all("HOROVOD_WITHOUT_", "PYTORCH TENSORFLOW MXNET MPI GLOO NVTX"),
            *_all("HOROVOD_GPU_", "ALLREDUCE ALLGATHER BROADCAST ALLTOALL REDUCESCATTER"),
            *_all("HOROVOD_NCCL_", "HOME INCLUDE LIB LINK"),
            *_all("HOROVOD_", "GPU CUDA_HOME ROCM_HOME BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST ALLOW_MIXED_GPU_IMPL"),
            *_all("HOROVOD_", "CMAKE MPICXX_SHOW DEBUG SKIP_COMPILE LOCAL_VERSION"),
        ),
        "builds Horovod: the core is compiled against no framework, no MPI and no CUDA, so there is nothing to choose",
    ),
    Idle(("HOROVOD_TEST_GPU", "HOROVOD_MIXED_INSTALL"), "read by Horovod's own tests"),
)
