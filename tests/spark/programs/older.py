"""Spark 3.5: run, elastic jobs, a fit."""

from typing import TYPE_CHECKING

import pyspark

import hvd_kernel.spark

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session

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
        num_proc=2,
        store=Store.create("runs"),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.005),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=4,
        epochs=40,
        verbose=0,
    )
    fitted = estimator.fit(frame)
    found = fitted.transform(frame).select("y", "y__output").collect()
    return [len(fitted.getHistory()), max(abs(row["y"] - row["y__output"]) for row in found) < 0.5]


report_cases(version, run, elastic, cause, estimator)
