"""PySpark 3.5, the older of the two: one run and one estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = """
import pyspark
import hvd_kernel.spark
spark = session("local[2]", spark_default_parallelism="2", spark_sql_shuffle_partitions="2")

def version():
    return pyspark.__version__.rpartition(".")[0]

def run():
    def place(factor):
        import numpy as np
        import hvd_kernel.numpy as hvd
        hvd.init()
        return [hvd.rank(), hvd.size(), factor * int(hvd.allreduce(np.array([hvd.rank() + 1]), op=hvd.Sum)[0])]
    return hvd_kernel.spark.run(place, (2,), num_proc=2)

def elastic():
    def train():
        import numpy as np
        import hvd_kernel.numpy as hvd
        hvd.init()
        state = hvd.elastic.ObjectState(total=0)
        @hvd.elastic.run
        def steps(state):
            state.total += int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            state.commit()
        steps(state)
        return [hvd.rank(), hvd.size(), state.total]
    return hvd_kernel.spark.run_elastic(train, num_proc=2)

def cause():
    def fails():
        raise ValueError("shard", 1)
    return hvd_kernel.spark.run(fails, num_proc=1)

def estimator():
    import torch
    from hvd_kernel.spark.common.store import Store
    from hvd_kernel.spark.torch import TorchEstimator
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    rows = [(float(x), 3.0 * x + 1.0) for x in range(-8, 8)]
    frame = spark.createDataFrame(rows, ["x", "y"])
    estimator = TorchEstimator(
        num_proc=2, store=Store.create("runs"), model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.005),
        loss=torch.nn.functional.mse_loss, feature_cols=["x"], label_cols=["y"], batch_size=4, epochs=40, verbose=0,
    )
    fitted = estimator.fit(frame)
    found = fitted.transform(frame).select("y", "y__output").collect()
    return [len(fitted.getHistory()), max(abs(row["y"] - row["y__output"]) for row in found) < 0.5]

tell(version, run, elastic, cause, estimator)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("older")
    return outcomes(SCRIPT, folder, version="spark35")


def test_it_is_that_version(told: Any) -> None:
    assert told["version"] == "3.5"


def test_ranks_run(told: Any) -> None:
    assert told["run"] == [[0, 2, 6], [1, 2, 6]]


def test_ranks_of_an_elastic_job_run(told: Any) -> None:
    assert told["elastic"] == [[0, 2, 2], [1, 2, 2]]


def test_what_a_rank_raises_is_the_cause(told: Any) -> None:
    assert [told["cause"][name] for name in ("raised", "cause", "args")] == ["RankFailed", "ValueError", ["shard", "1"]]


def test_an_estimator_fits_and_predicts(told: Any) -> None:
    assert told["estimator"] == [40, True]
