"""The frontend, the core and its CUDA plugin together, on a fake driver: the checks of tests/gpu, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hvdtest import fake_cuda_driver, fake_gpu
from hvdtest.gpu import gpu_ranks
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import layouts

pytestmark = [
    pytest.mark.mp,
    pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not()),
    *([] if shutil.which("nvcc", path="/usr/local/cuda/bin:" + os.environ["PATH"]) else [pytest.mark.gpu]),
]


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpu_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VALUES, ERRORS, BUCKETS = (_module(TESTS / "gpu" / f"test_{name}.py") for name in ("values", "errors", "buckets"))


layout = layouts((2, "core"), nightly=((1, "ring"), (2, "ring"), (3, "ring")))


@pytest.fixture
def ranks(layout: tuple[int, str]) -> RankPool:
    return gpu_ranks(*layout, HVD_CUDA_DRIVER=str(fake_cuda_driver.driver()))


@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
def test_every_type_and_operation(op: str, ranks: RankPool) -> None:
    assert len(set(ranks.run(VALUES.reductions, op, timeout=120.0))) == 1


@pytest.mark.parametrize("check", ["scaled_and_in_place", "moves", "groups", "subsets"])
def test_the_same_bytes_as_on_the_host(check: str, ranks: RankPool) -> None:
    ranks.run(getattr(VALUES, check), timeout=120.0)


def test_host_and_gpu_tensors_mismatch_on_every_rank(ranks: RankPool) -> None:
    if ranks.np > 1:
        said = ranks.run(ERRORS.here_and_there)
        assert all(each == said[0] for each in said)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_reduced_in_place(dtype: str, layout: tuple[int, str], ranks: RankPool) -> None:
    BUCKETS.test_gradients_are_reduced_in_place(dtype, layout, ranks)


class _FakeRank:
    """A rank's stream on the fake driver, and memory of the host that stands for the device's."""

    def __init__(self) -> None:
        self._driver = fake_cuda_driver.FakeCudaDriver(str(fake_cuda_driver.driver()))
        self.stream = self._driver.stream.cuda_stream

    def floats(self, count: int) -> np.ndarray:
        return np.ones(count, np.float32)

    def pointer(self, memory: np.ndarray) -> int:
        self._driver.keep([memory])
        return int(memory.ctypes.data)

    def wait(self) -> None:
        self._driver.wait()


@pytest.mark.parametrize("n", [2, 4])
def test_benchmark_of_ranks_as_threads(n: int) -> None:
    took = _module(TESTS.parent / "tools" / "gpu" / "threads.py").took(
        n, [4096, 100_000], _FakeRank, {"cuda_driver": str(fake_cuda_driver.driver())}
    )
    assert set(took) == {(way, size) for way in ("slices", "persistent", "shared") for size in (4096, 100_000)}
    assert all(seconds > 0 for seconds in took.values())


def _timed() -> list[int]:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    before = session.counters()
    fake_gpu.here(hvd.allreduce(fake_gpu.there(torch.ones(100_000)), name="timed"))
    after = session.counters()
    return [after[name] - before[name] for name in ("busy_ns", "wait_ns")]


def test_dashboard_counts_device_operations(ranks: RankPool) -> None:
    for busy, waited in ranks.run(_timed):
        assert busy > 0
        assert waited >= 0
