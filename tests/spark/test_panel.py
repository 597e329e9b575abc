"""A fit, or an elastic job, in a notebook: a panel shows its ranks while they train. A real kernel, and a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import environment
from hvdtest.kernel import Kernel
from hvdtest.panel_rows import TRAIN, run_and_seen

pytestmark = [pytest.mark.jupyter, pytest.mark.nightly, pytest.mark.timeout(600)]
PATIENT_S = 400.0

BEGIN = """
import os, torch
from pyspark.sql import SparkSession
from hvd_kernel.spark.common.backend import RunBackend, SparkBackend
from hvd_kernel.spark.common.store import Store
from hvd_kernel.spark.torch import TorchEstimator

build = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
spark = build.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
frame = spark.createDataFrame([([n / 16.0], n / 8.0) for n in range(16)], ["x", "y"])

def steps_until(seen):
    # Each batch is repeated until the test has seen it.
    def minibatch(model, optimizer, transform_outputs, loss_fn, inputs, labels, weights):
        import hvd_kernel.torch as hvd
        while True:
            optimizer.zero_grad()
            outputs, fitted = transform_outputs(model(*inputs), labels)
            loss = loss_fn(outputs, fitted, weights)
            loss.backward()
            optimizer.step()
            hvd.log(rank_loss=hvd.rank() + 0.5)
            if hvd.allreduce(torch.tensor(float(os.path.exists(seen))), name="seen", op=hvd.Sum) > 0:
                return outputs, loss
    return minibatch

def fit(folder, backend):
    model = torch.nn.Linear(1, 1)
    return TorchEstimator(
        backend=backend, store=Store.create(f"{folder}/store"), model=model, loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1), feature_cols=["x"], label_cols=["y"], batch_size=8,
        train_minibatch_fn=steps_until(f"{folder}/seen"), verbose=0,
        callbacks=[lambda results: open(f"{folder}/process", "w").write(str(os.getpid()))],
    ).fit(frame)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    python = environment("spark")
    env = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-Xss2m"}
    with Kernel(tmp_path_factory.mktemp("panel"), python=python, env=env) as started:
        started.run(BEGIN + TRAIN, timeout=PATIENT_S)
        yield started
        started.run("spark.stop()", timeout=PATIENT_S)


def fitted_and_seen(kernel: Kernel, folder: Path, backend: str) -> dict[str, list[Any]]:
    """Fit; return each rank's row, as the panel has it while the ranks still train."""
    return run_and_seen(kernel, folder, f"fitted = fit({str(folder)!r}, {backend})")


def test_panel_shows_ranks_of_a_fit_while_they_train(kernel: Kernel, tmp_path: Path) -> None:
    rows = fitted_and_seen(kernel, tmp_path, "SparkBackend(2)")
    assert [rows[rank][-1][0] for rank in "01"] == [0.5, 1.5], "what each rank has logged"
    assert all(rows[rank][3] is None or rows[rank][3] > 0 for rank in "01"), "samples per second"
    ended = kernel.run("len(fitted.getHistory())")
    assert ended.shown == ["1"]


def test_panel_shows_ranks_of_an_elastic_job(kernel: Kernel, tmp_path: Path) -> None:
    begin = "import hvd_kernel.spark\ndone = hvd_kernel.spark.run_elastic"
    rows = run_and_seen(kernel, tmp_path, f"{begin}(train, ({str(tmp_path)!r},), num_proc=2)")
    assert [rows[rank][-1][0] for rank in "01"] == [0.5, 1.5], "what each rank has logged"
    assert kernel.run("done").shown == ["[0, 1]"]
    ended = kernel.run("%hvd runs").text().splitlines()[-1].split()
    assert ended[4:6] == ["done", "2"], "it is kept as a run of a cell is"


def test_ranks_of_a_notebook_train_a_fit_with_their_panel(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun --on spark -np 2 -o pids\nimport os\nos.getpid()", timeout=PATIENT_S)
    rows = fitted_and_seen(kernel, tmp_path, "RunBackend(2)")
    assert [rows[rank][-1][0] for rank in "01"] == [0.5, 1.5]
    same = kernel.run("pids[0]").shown == [(tmp_path / "process").read_text()]
    assert same, "rank 0 has trained, whose variables the notebook has"
    kernel.run("%hvd stop")
