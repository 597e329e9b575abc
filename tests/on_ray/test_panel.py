"""Executors of Ray in a notebook: a panel shows the ranks while they train. A real kernel, and a real Ray of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest import ray_driver
from hvdtest.environments import environment
from hvdtest.kernel import Kernel
from hvdtest.panel_rows import TRAIN, run_and_seen

pytestmark = [pytest.mark.jupyter, pytest.mark.nightly, pytest.mark.timeout(600)]
PATIENT_S = 400.0

BEGIN = (
    ray_driver.HEAD
    + """
from hvd_kernel.ray import ElasticRayExecutor, RayExecutor
made, others = cluster(node(1), node(1))

def connect(is_client):
    ray.shutdown()
    ray.init(client_of(made) if is_client else made.address, log_to_driver=False)
"""
    + TRAIN
    + """
def of_two(folder):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=2)
    executor.start()
    try:
        return executor.run(train, (folder,))
    finally:
        executor.shutdown()

def elastic(folder):
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=300)
    executor = ElasticRayExecutor(settings)
    executor.start()
    return executor.run(lambda: train(folder))
"""
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with (
        ray_driver.variables() as env,
        Kernel(tmp_path_factory.mktemp("panel"), python=environment("ray"), env=env) as started,
    ):
        started.run(BEGIN, timeout=PATIENT_S)
        yield started
        started.run("ray.shutdown()\nmade.shutdown()", timeout=PATIENT_S)


@pytest.mark.parametrize("is_client", [False, True])
@pytest.mark.parametrize("executor", ["of_two", "elastic"])
def test_ranks_of_an_executor_are_on_the_panel_while_they_train(
    kernel: Kernel, tmp_path: Path, executor: str, is_client: bool
) -> None:
    kernel.run(f"connect({is_client})", timeout=PATIENT_S)
    rows = run_and_seen(kernel, tmp_path, f"done = {executor}({str(tmp_path)!r})")
    assert [rows[rank][-1][0] for rank in "01"] == [0.5, 1.5], "what each rank has logged"
    assert kernel.run("done").shown == ["[0, 1]"]
