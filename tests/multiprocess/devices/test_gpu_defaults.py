"""Defaults of ranks with GPUs, and their warnings about what is not possible: over a fake driver."""

from __future__ import annotations

import pytest
from hvdtest import fake_cuda_driver
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.mp, pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not())]
NO_BINARY = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU: of a device below compute capability 7.5
REFUSED = "HVD_GPU_RING=persistent is not possible among these ranks: "
REMEDY = "(give each rank a GPU of its own); use auto or slices"


def summed(sets: list[list[int]], op: str) -> list[str]:
    """Sum over this rank's set, or over all, twice; return the sum or the error, and the text on stderr."""
    import os
    import tempfile

    import torch
    from hvdtest import fake_gpu

    rank = int(os.environ["HOROVOD_RANK"])
    devices = int(os.environ.get("FAKE_CUDA_DEVICES", "1"))
    # The first is this rank's; where ranks are more than devices, they share them in turn.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str((rank + i) % devices) for i in range(devices))
    import hvd_kernel.torch as hvd

    fake_gpu.install()
    hvd.init()
    groups = [hvd.add_process_set(each) for each in sets] or [hvd.global_process_set]
    mine = next(each for each in groups if each.included())

    def total(turn: int) -> float:
        x = fake_gpu.there(torch.full((1000,), rank + 1.0))
        hvd.allreduce_(x, name=f"{turn} of {mine.process_set_id}", op=getattr(hvd, op), process_set=mine)
        values: list[float] = fake_gpu.here(x).unique().tolist()
        (value,) = values
        return value

    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            result = str([total(0), total(1)])
        except ValueError as error:
            result = str(error)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return [result, said.read().decode()]


def told(np: int, sets: list[list[int]], op: str = "Sum", **env: str) -> list[list[str]]:
    ranks = RankPool(np, "auto", HVD_CUDA_DRIVER=str(fake_cuda_driver.driver()), HVD_DYNAMIC_PROCESS_SETS="1", **env)
    try:
        found: list[list[str]] = ranks.run(summed, sets, op)
    finally:
        ranks.close()
    return found


def test_ranks_sharing_a_gpu_are_refused_the_persistent_ring() -> None:
    for error, _ in told(2, [], HVD_GPU_RING="persistent"):
        assert error == (
            f"{REFUSED}rank 0 and rank 1 are processes that share a device, where kernels that wait for each other may "
            f"never run together {REMEDY}"
        )


@pytest.mark.nightly
def test_by_default_the_core_reduces_device_memory_silently() -> None:
    assert told(2, []) == [["[3.0, 3.0]", ""]] * 2


@pytest.mark.nightly
def test_operations_beyond_the_ring_are_staged_and_logged_once() -> None:
    said = "hvd_kernel warning: cuda/staged_notice: Adasum of float32 on devices goes through host memory: "
    assert told(2, [], "Adasum") == [["[1.5, 1.5]", f"{said}the ring on devices cannot do it\n"], ["[1.5, 1.5]", ""]]


@pytest.mark.nightly
def test_gpu_without_kernels_is_logged_once_and_staged() -> None:
    for result, said in told(2, [], FAKE_CUDA_FAIL=f"cuModuleLoadData:*:{NO_BINARY}"):
        assert result == "[3.0, 3.0]"
        assert said.startswith("hvd_kernel: tensors of a GPU are copied through host memory, which is slower: rank ")
        assert "-Ccmake.define.HVD_CUDA_TARGETS=ALL (compute capability 7.5 and later)" in said
        assert said.count("\n") == 1


@pytest.mark.nightly
def test_requested_staging_is_not_logged() -> None:
    env = {"HVD_GPU": "staged", "FAKE_CUDA_FAIL": f"cuModuleLoadData:*:{NO_BINARY}"}
    assert told(2, [], **env) == [["[3.0, 3.0]", ""]] * 2
    assert told(2, [], HVD_GPU_OPERATIONS="staged") == [["[3.0, 3.0]", ""]] * 2


@pytest.mark.nightly
def test_failed_ring_trial_is_logged_once_and_the_core_stages() -> None:
    (result, said), *others = told(2, [], FAKE_CUDA_FAIL="cuEventElapsedTime:*:999")
    assert {result, *(other for other, _ in others)} == {"[3.0, 3.0]"}
    assert said.startswith("hvd_kernel warning: cuda/accelerator: tensors on devices are reduced through host memory: ")
    assert "'ring': rank " in said
    assert said.count("\n") == 1
    assert [other for _, other in others] == [""]


@pytest.mark.nightly
def test_sets_sharing_gpus_are_refused_the_persistent_ring() -> None:
    """Ranks 0 and 2 share one, 1 and 3 the other; within each set every rank has its own."""
    sets, env = [[0, 1], [2, 3]], {"FAKE_CUDA_DEVICES": "2"}
    assert told(4, sets, **env) == [["[3.0, 3.0]", ""]] * 2 + [["[7.0, 7.0]", ""]] * 2
    pairs = [
        f"{REFUSED}rank {one} and rank {other} may be processes that share a device: "
        for one, other in ((0, 2), (2, 0))
    ]
    for error, _ in told(4, sets, HVD_GPU_RING="persistent", **env):
        assert error.startswith(tuple(pairs)), error


@pytest.mark.nightly
def test_ranks_with_a_gpu_each_may_use_the_persistent_ring() -> None:
    found = told(2, [], HVD_GPU_RING="persistent", FAKE_CUDA_DEVICES="2")
    assert found == [["[3.0, 3.0]", ""]] * 2
