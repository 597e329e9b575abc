"""Names, signatures and defaults of hvd_kernel.torch are Horovod's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import hvd_kernel.torch as hvd
from hvd_kernel.core import build_info
from hvd_kernel.launch.cli import check_build
from hvd_kernel.processes import libraries
from hvd_kernel.torch import mpi_ops

NCCL_HEADER = Path(__file__).resolve().parents[3] / "native" / "cuda" / "nccl" / "nccl.h"
OLDEST_NCCL = int(NCCL_HEADER.read_text().partition("kOldestNccl = ")[2].partition(";")[0])
ALLREDUCE = "tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global"
COMPRESSED = "tensor, average=None, name=None, compression=none, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global"
SCATTER = "tensor, name=None, op=0, process_set=global, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "rank": "",
    "size": "",
    "local_rank": "",
    "local_size": "",
    "cross_rank": "",
    "cross_size": "",
    "allreduce": COMPRESSED,
    "allreduce_async": ALLREDUCE,
    "allreduce_": ALLREDUCE,
    "allreduce_async_": ALLREDUCE,
    "grouped_allreduce": COMPRESSED.replace("tensor,", "tensors,"),
    "grouped_allreduce_async": ALLREDUCE.replace("tensor,", "tensors,"),
    "grouped_allreduce_": ALLREDUCE.replace("tensor,", "tensors,"),
    "grouped_allreduce_async_": ALLREDUCE.replace("tensor,", "tensors,"),
    "allgather": "tensor, name=None, process_set=global",
    "allgather_async": "tensor, name=None, process_set=global",
    "grouped_allgather": "tensors, name=None, process_set=global",
    "grouped_allgather_async": "tensors, name=None, process_set=global",
    "sparse_allreduce_async": "tensor, name, op, process_set=global",
    "alltoall": "tensor, splits=None, name=None, process_set=global",
    "alltoall_async": "tensor, splits=None, name=None, process_set=global",
    "reducescatter": SCATTER.replace("name=None,", "name=None, compression=none,"),
    "reducescatter_async": SCATTER,
    "grouped_reducescatter": SCATTER.replace("tensor,", "tensors,").replace(
        "name=None,", "name=None, compression=none,"
    ),
    "grouped_reducescatter_async": SCATTER.replace("tensor,", "tensors,"),
    "join": "device=-1",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "shared_empty": "shape, dtype=torch.float32",
    "release_shared": "",
    "broadcast": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async": "tensor, root_rank, name=None, process_set=global",
    "broadcast_": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=global",
    "barrier": "process_set=global",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=global",
    "allgather_object": "obj, name=None, process_set=global",  # Horovod's for TensorFlow has the set
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=0, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=global, gradients_in_buckets=None",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True, process_set=global, "
    "device=None, dtype=None",
    "convert_sync_batchnorm": "module, process_set=global",
    "mpi_threads_supported": "",
    "mpi_enabled": "",
    "mpi_built": "",
    "gloo_enabled": "",
    "gloo_built": "",
    "nccl_built": "",
    "ddl_built": "",
    "ccl_built": "",
    "cuda_built": "",
    "rocm_built": "",
    "is_homogeneous": "",
}


def shown(function: object) -> str:
    def default(value: object) -> str:
        special = {hvd.global_process_set: "global", hvd.Compression.none: "none"}
        return special[value] if value in special else repr(value)  # type: ignore[index]

    return ", ".join(
        p.name if p.default is p.empty else f"{p.name}={default(p.default)}"
        for p in inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    )


def test_signatures() -> None:
    assert {name: shown(getattr(hvd, name)) for name in SIGNATURES} == SIGNATURES
    assert not [name for name in SIGNATURES if not getattr(hvd, name).__doc__]


def test_constants_and_classes() -> None:
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.__version__
    assert all(hasattr(hvd, name) for name in mpi_ops.__all__)
    assert isinstance(hvd._check_has_gpu(), bool)


def test_before_init() -> None:
    sentence = r"Horovod has not been initialized; use hvd\.init\(\)\."
    assert not hvd.is_initialized()
    for function in (
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.is_homogeneous,
    ):
        with pytest.raises(ValueError, match=sentence):
            function()
    with pytest.raises(hvd.HorovodInternalError, match=sentence):
        hvd.allreduce(torch.ones(1))
    assert (hvd.global_process_set.size(), hvd.global_process_set.ranks) == (None, None)
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=None, mpi_comm=None)"
    assert hvd.synchronize(5) is None
    hvd.shutdown()


def test_build_info() -> None:
    assert (hvd.mpi_enabled(), hvd.mpi_built(), hvd.gloo_enabled(), hvd.gloo_built()) == (False, True, True, True)
    assert hvd.nccl_built() == 0 or (hvd.cuda_built() and hvd.nccl_built() > 20_000)
    with pytest.raises(ValueError, match="Horovod MPI is not enabled"):
        hvd.mpi_threads_supported()


def test_build_info_equals_check_build() -> None:
    """They reported no MPI where --check-build had a cross."""
    page = check_build.report()
    operations = page.partition("Available Tensor Operations:\n")[2].partition("\n\n")[0]
    rows = {row.split("] ")[1]: "[X]" in row for row in operations.splitlines()}
    built = [hvd.nccl_built() > 0, hvd.mpi_built(), hvd.gloo_built(), build_info.ddl_built(), build_info.ccl_built()]
    assert [rows[name] for name in ("NCCL", "MPI", "Gloo", "DDL", "CCL")] == built


@pytest.mark.parametrize(("version", "found"), [(OLDEST_NCCL, OLDEST_NCCL), (OLDEST_NCCL - 1, 0)])
def test_system_nccl_is_found_and_an_old_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: int, found: int
) -> None:
    """The core uses one that only the loader knows; the page looked only for its wheel."""

    class System:
        """A fake of the libraries that the loader finds by name; there is no wheel."""

        def __init__(self, name: str) -> None:
            if name != "libnccl.so.2":
                raise OSError(name)

        def ncclGetVersion(self, code: Any) -> int:  # noqa: N802 - NCCL's name
            code._obj.value = version
            return 0

    monkeypatch.setattr(libraries.ctypes, "CDLL", System)
    assert libraries.nccl() == found


def test_average_is_deprecated() -> None:
    with (
        pytest.warns(DeprecationWarning, match="Parameter `average` has been replaced with `op`"),
        pytest.raises(hvd.HorovodInternalError),
    ):
        hvd.allreduce(torch.ones(1), average=True)
    with pytest.raises(ValueError, match=r"The op parameter supersedes average\. Please provide only one of them\."):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)


def test_process_sets_before_init() -> None:
    made = hvd.ProcessSet((3, 1, 2))
    assert (made.ranks, made.process_set_id, made.size(), made.rank(), made.included()) == ([1, 2, 3], *[None] * 4)
    assert str(made) == "ProcessSet(process_set_id=None, ranks=[1, 2, 3], mpi_comm=None)"
    assert hvd.ProcessSet(range(2)).ranks == [0, 1]
    for wrong in (5, ["a"], [0.5], None):
        with pytest.raises(
            ValueError, match="should be initialized with a list of process ranks or an mpi4py Comm object"
        ):
            hvd.ProcessSet(wrong)
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.add_process_set(made)
    assert hvd.remove_process_set(made) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match='a list of process sets or "dynamic"'):
        hvd.init(process_sets="static")
    assert not hvd.is_initialized()


def test_timeline_before_init() -> None:
    for call in (lambda: hvd.start_timeline("x"), hvd.stop_timeline):
        with pytest.raises(ValueError, match="not been initialized"):
            call()


def test_compression() -> None:
    x = torch.tensor([1.0, 2.0**-12, 70000.0], dtype=torch.float64)
    small, ctx = hvd.Compression.fp16.compress(x)
    assert (small.dtype, ctx) == (torch.float16, torch.float64)
    restored = hvd.Compression.fp16.decompress(small, ctx)
    assert restored.dtype == torch.float64
    assert restored[:2].tolist() == [1.0, 2.0**-12]
    small, ctx = hvd.Compression.bf16.compress(x)
    assert (small.dtype, ctx) == (torch.bfloat16, torch.float64)
    assert small.isfinite().all()
    assert hvd.Compression.bf16.decompress(small, ctx).tolist() == [1.0, 2.0**-12, 70144.0]
    whole = torch.tensor([1, 2])
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
        same, ctx = compression.compress(whole)
        assert same is whole
        assert compression.decompress(same, ctx) is whole


def test_sync_batch_norm_needs_init_only_to_train() -> None:
    layer = hvd.SyncBatchNorm(2, affine=False, momentum=None)
    assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    with pytest.raises(ValueError, match="has not been initialized"):
        layer(torch.ones(3, 2))
    assert torch.equal(layer.eval()(torch.zeros(3, 2)), torch.zeros(3, 2))
