"""Many gradients on a device become few operations, whatever the device does meanwhile: on the fake driver."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping

import pytest
from hvdtest import fake_cuda_driver
from hvdtest.fake_batches import most_in_turns, most_operations, reduce_behind_gate
from hvdtest.launch import RankPool, horovod_variables

pytestmark = [
    pytest.mark.mp,
    pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not()),
    *([] if shutil.which("nvcc", path="/usr/local/cuda/bin:" + os.environ["PATH"]) else [pytest.mark.gpu]),
]


def _gradients() -> tuple[int, float]:
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    driver = os.environ["HVD_CUDA_DRIVER"]
    return reduce_behind_gate(session.engine(), hvd.rank(), hvd.size(), driver)


def _in_turns(rank: int, np: int, port: int) -> Mapping[str, str]:
    return {**horovod_variables(rank, np, port), "FAKE_CUDA_TURN": f"{rank}/{np}"}


@pytest.mark.parametrize(
    ("np", "slices"),
    [
        (2, True),
        *(pytest.param(np, slices, marks=pytest.mark.nightly) for np, slices in [(2, False), (4, True), (4, False)]),
    ],
)
def test_gradients_of_processes_become_a_handful_of_operations(np: int, slices: bool) -> None:
    """With time slices of the device, as without MPS, and without."""
    variables = _in_turns if slices else horovod_variables
    with RankPool(np, "auto", variables, HVD_GPU="core", HVD_CUDA_DRIVER=str(fake_cuda_driver.driver())) as ranks:
        for _ in range(2):
            told = ranks.run(_gradients, timeout=120.0)
            assert len({operations for operations, _ in told}) == 1
            operations, seconds = told[0]
            assert operations <= (most_in_turns if slices else most_operations)(seconds)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_gradients_of_threads_become_a_handful_of_operations(size: int) -> None:
    from hvd_kernel._native import Engine, LocalHub

    hub, together = LocalHub(size), threading.Barrier(size, timeout=120)
    driver, told, errors = str(fake_cuda_driver.driver()), {}, []

    def rank(number: int) -> None:
        try:
            engine = Engine(number, size, hub, {"gpu_operations": "ring", "cuda_driver": driver})
            told[number] = reduce_behind_gate(engine, number, size, driver)
            together.wait()
            engine.shutdown()
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len({operations for operations, _ in told.values()}) == 1
    operations, seconds = told[0]
    assert operations <= most_operations(seconds)
