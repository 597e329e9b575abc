"""The page of settings is the table's, and no variable of Horovod's is missing from it."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

from hvd_kernel.settings import CORE_SETTINGS, HOROVOD_VALUES, SETTINGS, UNUSED
from hvd_kernel.settings.__main__ import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "knobs.md"

# Horovod 0.28.1: horovod/common/common.h, horovod/runner/common/util/config_parser.py, docs/install.rst, docs/spark.rst.
_NAMES = """
FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE
BATCH_D2D_MEMCOPIES NUM_NCCL_STREAMS DISABLE_GROUP_FUSION ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS DYNAMIC_PROCESS_SETS
TIMELINE TIMELINE_MARK_CYCLES DISABLE_NVTX_RANGES
AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES
AUTOTUNE_GAUSSIAN_PROCESS_NOISE
STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS
LOG_LEVEL LOG_HIDE_TIME CONTROLLER CPU_OPERATIONS
GLOO_IFACE GLOO_TIMEOUT_SECONDS GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT
MPI_THREADS_DISABLE ADASUM_MPI_CHUNK_SIZE CCL_CACHE THREAD_AFFINITY ELASTIC ELASTIC_TIMEOUT START_TIMEOUT
SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_PYTHONPATH SPARK_WORK_DIR SECRET_KEY
HOSTNAME RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE
GPU GPU_OPERATIONS GPU_ALLREDUCE GPU_ALLGATHER GPU_BROADCAST GPU_ALLTOALL GPU_REDUCESCATTER
CUDA_HOME NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK ROCM_HOME BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST
ALLOW_MIXED_GPU_IMPL CMAKE MPICXX_SHOW DEBUG SKIP_COMPILE LOCAL_VERSION TEST_GPU MIXED_INSTALL
"""
_FRAMEWORKS = ("PYTORCH", "TENSORFLOW", "MXNET", "MPI", "GLOO", "NVTX")
HOROVODS = {f"HOROVOD_{name}" for name in _NAMES.split()} | {
    f"HOROVOD_{choice}_{name}" for choice, name in product(("WITH", "WITHOUT"), _FRAMEWORKS)
}


def every_variable() -> list[str]:
    rows = [*SETTINGS, *UNUSED]
    return [name for row in rows for name in row.variables]


def test_variables_of_horovod_are_read_or_reported() -> None:
    others = {"HOROVOD_CPU_OPERATIONS", "HOROVOD_CONTROLLER", "HOROVOD_TORUS_ALLREDUCE"}
    assert {name for row in HOROVOD_VALUES for name in row.variables} - others <= set(every_variable())
    assert all(row.taken and row.rest for row in HOROVOD_VALUES)


def test_the_page_is_the_tables() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m hvd_kernel.settings > docs/knobs.md"


def test_the_module_prints_the_page() -> None:
    printed = subprocess.run([sys.executable, "-m", "hvd_kernel.settings"], capture_output=True, text=True, check=True)
    assert printed.stdout == page()


def test_every_variable_of_horovod_is_listed() -> None:
    assert HOROVODS - set(every_variable()) - {name for row in HOROVOD_VALUES for name in row.variables} == set()


def test_variables_are_unique_and_documented() -> None:
    assert sorted(every_variable()) == sorted(set(every_variable()))
    assert all(row.doc for row in SETTINGS)
    assert all(row.reason for row in UNUSED)


def test_every_setting_has_our_own_variable_first() -> None:
    assert all(row.variables[0].startswith("HVD_") for row in CORE_SETTINGS)


def test_every_default_passes_its_own_check() -> None:
    for row in SETTINGS:
        if row.default:
            row.check(row.default)
