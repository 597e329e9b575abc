"""``transform`` beside a model called row by row."""

import time
from typing import TYPE_CHECKING

import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.types import DoubleType, StructField, StructType

from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.torch import TorchModel

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session

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
    close = zip(*[[row["y__output"] for row in made(few).collect()] for made in (rows, model.transform)], strict=True)
    assert all(abs(one - two) < 1e-5 for one, two in close)
    seconds(model.transform(frame)), seconds(rows(few))
    ours, theirs = min(seconds(model.transform(frame)) for _ in range(3)), seconds(rows(frame))
    return [theirs, ours, theirs / ours]


report_cases(ratio)
