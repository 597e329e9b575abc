"""Sparse vectors as features."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from pyspark.ml.linalg import Vectors

from hvd_kernel.spark.common import columns, datamodule
from hvd_kernel.spark.common.backend import Backend
from hvd_kernel.spark.common.columns import of_arrow
from hvd_kernel.spark.common.store import LocalStore
from hvd_kernel.spark.torch import TorchEstimator

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session


def sparse(size, **values):
    places = {int(at[1:]): value for at, value in values.items()}
    return {"type": 0, "size": size, "indices": [*places], "values": [*places.values()]}


def full(*values):
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


KIND = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


def held(*rows):
    return pa.array(rows, KIND)


MIXED = (sparse(3, _0=1.0), full(2.0, 0.0, 3.0), sparse(3), sparse(3, _1=4.0, _2=5.0))

# Without Spark.


def made_dense():
    whole = held(*MIXED)
    return [
        columns.dense(whole, "x", 3).tolist(),
        columns.dense(whole[1:3], "x", 3).tolist(),
        columns.dense(whole.take(pa.array([3, 0])), "x", 3).tolist(),
        columns.dense(whole[:0], "x", 3).shape,
    ]


def kinds():
    tables = [pa.table({"x": held(*rows)}) for rows in (MIXED, MIXED[2:], [None, MIXED[0]], [sparse(2), sparse(3)])]
    return [[of_arrow(table, {})["x"].kind, of_arrow(table, {})["x"].shape] for table in tables]


def another_length():
    return columns.dense(held(sparse(3), full(1.0, 2.0)), "x", 3)


def none_there():
    return columns.dense(held(sparse(3), None), "x", 3)


def batches_of(rows, **more):
    store, folder = LocalStore(str(Path.cwd())), Path("rows")
    folder.mkdir(exist_ok=True)
    table = pa.table({"x": held(*(sparse(1000, **{f"_{row}": row + 1.0}) for row in range(rows)))})
    pyarrow.parquet.write_table(table, folder / "part-0.parquet", row_group_size=4)
    source = datamodule.source_of(store, f"{Path.cwd()}/rows", of_arrow(table, {}))
    return datamodule.BatchReader(source, 0, 1, 4, **more)


def row_numbers(batch):
    rows, places = np.nonzero(batch["x"])
    assert rows.tolist() == list(range(len(batch["x"])))
    assert (batch["x"][rows, places] == places + 1.0).all()
    return places.tolist()


def batches():
    straight = [row_numbers(batch) for batch in batches_of(10).epoch(0)]
    mixed = batches_of(10, shuffle=True, seed=1, window=10, keep=True)
    epochs = [[number for batch in mixed.epoch(at) for number in row_numbers(batch)] for at in (0, 1)]
    return [straight, [sorted(each) == list(range(10)) for each in epochs], epochs[0] != epochs[1]]


def memory():
    # 256 MiB hold 33,554 rows of 1,000 numbers: what is kept in memory has no zeros, but for a function of the user's.
    datamodule._WINDOW_BYTES = 2 * 8000
    seen = []

    def look(rows):
        seen.append([len(rows), type(rows["x"][0]).__name__, len(rows["x"][0])])
        return rows

    changed = [row_numbers(batch) for batch in batches_of(10, transform=look, window=4).epoch(0)]
    kept = batches_of(10, keep=True)
    list(kept.epoch(0))
    return [seen, changed, sum(part["x"].nbytes for part in kept._kept) < 1000]


# With Spark.


class Here(Backend):
    def run(self, fn, args=(), kwargs=None, env=None):
        return [fn(*args, **(kwargs or {}))]

    def num_processes(self):
        return 1


ROWS = [(Vectors.sparse(4, {n % 4: n / 4}), Vectors.sparse(2, {n % 2: 1.0})) for n in range(8)]


def line():
    made = torch.nn.Linear(4, 2)
    torch.nn.init.constant_(made.weight, 0.5)
    torch.nn.init.zeros_(made.bias)
    return made


def estimator(folder, **more):
    model = line()
    given = {
        "backend": Here(),
        "store": LocalStore(f"{Path.cwd()}/{folder}"),
        "model": model,
        "loss": torch.nn.functional.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": 8,
        "shuffle": False,
        "verbose": 0,
    }
    return TorchEstimator(**given | more)


def by_hand():
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, labels = (torch.tensor([[*row[at]] for row in ROWS], dtype=torch.float32) for at in (0, 1))
    torch.nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()
    return model


def stored(folder):
    [file] = list(Path(folder).glob("intermediate_train_data.0/*.parquet"))
    return [str(field.type) for field in pyarrow.parquet.read_schema(file)]


def same(model):
    return all(torch.equal(*pair) for pair in zip(model.getModel().parameters(), by_hand().parameters(), strict=True))


def fits():
    frame = spark.createDataFrame(ROWS, ["x", "y"]).coalesce(1)
    told = {}
    for compress in (False, True):
        folder = f"store{compress}"
        made = estimator(folder, compress_sparse_cols=compress).fit(frame)
        again = estimator(folder).fit_on_parquet(dataset_idx=0)
        told[compress] = [[each.kind for each in made.getMetadata().values()], stored(folder), same(made), same(again)]
    return told


def several_ranks():
    frame = spark.createDataFrame(ROWS, ["x", "y"]).coalesce(1)
    return same(
        estimator(
            "ranks",
            backend=None,
            num_proc=2,
            batch_size=4,
            compress_sparse_cols=True,
            optimizer=torch.optim.SGD((net := line()).parameters(), lr=0.25),
            model=net,
        ).fit(frame)
    )


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x[:, 1:3] * 2 + self.unused * 0


def predictions():
    frame = spark.createDataFrame(ROWS, ["x", "y"]).coalesce(1)
    told = []
    for rows in (frame, frame.union(spark.createDataFrame([(ROWS[0][0], Vectors.dense(1.0, 0.0))], ["x", "y"]))):
        model = Twice()
        made = estimator("twice", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5)).fit(rows)
        told.append([str(row["y__output"]) for row in made.transform(frame).collect()[:3]])
    return told


report_cases(made_dense, kinds, another_length, none_there, batches, memory)
spark = session("local[2]")
report_cases(fits, several_ranks, predictions)
spark.stop()
