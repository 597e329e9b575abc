"""``%%hvdrun --on spark`` in JupyterLab, and a fit on tasks of Spark: their panels, and the interrupt button."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest import engine_lab
from hvdtest.environments import environment
from hvdtest.lab import TRAIN

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.nightly, pytest.mark.timeout(600)]

SESSION = """from pyspark.sql import SparkSession
build = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
build = build.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = build.config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")"""
START = "%%hvdrun --on spark -np 2\nimport os, torch\nkept = rank * 10"
FIT = """import os, torch
from hvd_kernel.spark.common.store import Store
from hvd_kernel.spark.torch import TorchEstimator

def minibatch(model, optimizer, transform_outputs, loss_fn, inputs, labels, weights):
    import hvd_kernel.torch as hvd
    while True:  # until the test has seen it
        optimizer.zero_grad()
        outputs, fitted = transform_outputs(model(*inputs), labels)
        loss = loss_fn(outputs, fitted, weights)
        loss.backward()
        optimizer.step()
        hvd.log(loss=loss)
        if hvd.allreduce(torch.tensor(float(os.path.exists("SEEN/fit"))), name="seen", op=hvd.Sum) > 0:
            return outputs, loss

frame = spark.createDataFrame([([n / 64.0], n / 32.0) for n in range(64)], ["x", "y"])
model = torch.nn.Linear(1, 1)
TorchEstimator(
    num_proc=2, store=Store.create("SEEN/store"), model=model, loss=torch.nn.functional.mse_loss, verbose=0,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1), feature_cols=["x"], label_cols=["y"], batch_size=16,
    train_minibatch_fn=minibatch,
).fit(frame);"""


def test_panels_show_ranks_in_tasks_while_they_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, fit = "%%hvdrun\n" + TRAIN.replace("SEEN", str(tmp_path / "cell")), FIT.replace("SEEN", str(tmp_path))
    cells = [SESSION, START, train, engine_lab.HANG, engine_lab.STILL, "%hvd stop", fit, "spark.stop()"]
    python = str(environment("spark"))
    env = {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-Xss2m"}
    with engine_lab.notebook_of("spark", cells, tmp_path, monkeypatch, **env) as (_, page, notebook):
        engine_lab.train_and_interrupt(notebook, "spark", tmp_path / "cell", "[0-1] trained")
        engine_lab.run(notebook, 5)
        engine_lab.begin(notebook, 6)
        engine_lab.wait_for_column(notebook, "2 ranks on Spark", "step", "Number(text.replaceAll(',', '')) > 10")
        engine_lab.wait_for_column(notebook, "2 ranks on Spark", "samples/s", "Number(text.replaceAll(',', '')) > 0")
        notebook.shoot(engine_lab.SHOTS / "spark-fit.png", ".hvd >> nth=-1")
        (tmp_path / "fit").touch()
        engine_lab.finish(notebook, 6)
        notebook.shoot(engine_lab.SHOTS / "spark-fitted.png", ".hvd >> nth=-1")
        engine_lab.run(notebook, 7)
        assert page.errors == []
        assert page.strangers == []
