"""Stores of estimators, and files of other Horovods."""

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs

from hvd_kernel.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store

if TYPE_CHECKING:
    from driver_cases import report_cases

here = str(Path.cwd())


def kinds():
    os.environ["DATABRICKS_RUNTIME_VERSION"] = "15"
    on_databricks = [type(Store.create(path)).__name__ for path in ("dbfs:/x", "/dbfs/x", "file:///dbfs/x", "/tmp/x")]
    del os.environ["DATABRICKS_RUNTIME_VERSION"]
    return on_databricks + [type(Store.create(path)).__name__ for path in ("hdfs://h:9/x", "memory://x", "/dbfs/x")]


def paths():
    store = LocalStore(here)
    return [
        each.replace(here, "HERE")
        for each in (
            store.get_train_data_path(3),
            store.get_val_data_path(),
            store.get_test_data_path(),
            store.get_run_path("r"),
            store.get_checkpoint_path("r"),
            store.get_checkpoint_filename(),
            store.get_logs_path("r"),
            store.spark_path(here),
        )
    ]


def given_paths():
    store = LocalStore(here, train_path="/t", runs_path="/r", save_runs=False, checkpoint_filename="c")
    return [
        store.get_train_data_path(1),
        store.get_run_path("x"),
        store.get_checkpoint_path("x"),
        store.get_logs_path("x"),
        store.get_checkpoint_filename(),
        store.saving_runs(),
    ]


def spark_has_other_schemes():
    store = FilesystemStore.__new__(FilesystemStore)
    dbfs = DBFSLocalStore("dbfs:/x")
    return [
        FilesystemStore.spark_path(store, "s3://b/x"),
        dbfs.spark_path(dbfs.get_train_data_path(0)),
        dbfs.get_train_data_path(0),
        dbfs.get_checkpoint_filename(),
    ]


def files():
    told = []
    for store in (LocalStore(here + "/own"), Store.create("memory://own")):
        path = store.get_run_path("r") + "/checkpoint"
        before = store.exists(path)
        store.write(path, b"one")
        store.write(path, b"two")
        again = pickle.loads(pickle.dumps(store))
        told.append(
            [
                before,
                again.read(path).decode(),
                again == store,
                sorted(each.rpartition("/")[2] for each in store.fs.find(store.inside(store.get_run_path("r")))),
            ]
        )
    return told


def hdfs():
    made = []

    class Fake:
        def __new__(cls, **connection):
            made.append(connection)
            return pyarrow.fs.SubTreeFileSystem(here, pyarrow.fs.LocalFileSystem())

    pyarrow.fs.HadoopFileSystem = Fake
    store = Store.create("hdfs://name:8020/work", user="me")
    store.write(store.get_run_path("r") + "/checkpoint", b"kept")
    again = pickle.loads(pickle.dumps(store))
    return [
        made[0],
        again.read("hdfs://name:8020/work/runs/r/checkpoint").decode(),
        Path(here, "work/runs/r/checkpoint").exists(),
        store.get_train_data_path(0),
        HDFSStore(**store.description()) == store,
    ]


def synced():
    store = LocalStore(here + "/sync")
    remote = store.to_remote("r", 2)
    with remote.get_local_output_dir() as folder:
        Path(folder, "logs").mkdir()
        Path(folder, "logs", "a").write_text("1")
        remote.sync(folder)
    return [
        store.read(store.get_run_path("r") + "/logs/a").decode(),
        remote.train_data_path.endswith("intermediate_train_data.2"),
    ]


def nothing_known():
    return Store.create("nothing://x")


def package_missing():
    return Store.create("s3://bucket/x")


def own_kind():
    class Mine(LocalStore):
        @classmethod
        def matches(cls, path):
            return path.startswith("mine:")

        def __init__(self, path):
            super().__init__(path.removeprefix("mine:"))

    try:
        return type(Store.create(f"mine:{here}")).__name__
    finally:
        Store._kinds.remove(Mine)


def params():
    os.environ["KERAS_BACKEND"] = "torch"
    from hvd_kernel.spark.keras import KerasEstimator
    from hvd_kernel.spark.lightning import TorchEstimator as Light
    from hvd_kernel.spark.torch import TorchEstimator, TorchModel

    torch_one, keras_one, light_one = TorchEstimator(), KerasEstimator(), Light()
    table = {param.name: torch_one.getOrDefault(param) for param in torch_one.params}
    unlike = {
        name: (table[name], one.getOrDefault(name))
        for one in (keras_one, light_one)
        for name in table
        if one.hasParam(name) and one.getOrDefault(name) != table[name]
    }
    model = TorchModel(label_columns=["y", "z"])
    assert torch_one.setBatchSize(5) is torch_one
    return {
        "table": table,
        "unlike": unlike,
        "keras": {
            name: keras_one.getOrDefault(name) for name in ("custom_objects", "checkpoint_callback", "backend_env")
        },
        "lightning": [light_one.getLogEveryNSteps(), light_one.getTerminateOnNan(), light_one.getTrainerArgs()],
        "odd": [
            hasattr(torch_one, name)
            for name in (
                "setTrainReaderNumWorker",
                "setShufflingBufferSize",
                "getInMemoryCacheAll",
                "getMpStartMethod",
                "setValReaderNumWorker",
            )
        ]
        + [hasattr(model, "setLabelColoumns")],
        "outputs": model.getOutputCols(),
        "set": torch_one.getBatchSize(),
        "others": TorchEstimator().getBatchSize(),
    }


def of_a_kind():
    from hvd_kernel.spark.torch import TorchEstimator

    return TorchEstimator(batch_size="many")


def devices():
    from hvd_kernel.spark.common import backend

    given = {}
    backend.runner.run = lambda *_args, env, **_named: given.update(env)
    made = backend.SparkBackend(2, env={"CUDA_VISIBLE_DEVICES": "3", "A": "1"})
    made.run(print, env={"CUDA_VISIBLE_DEVICES": "4", "B": "2"})
    return given


report_cases(
    kinds,
    paths,
    given_paths,
    spark_has_other_schemes,
    files,
    hdfs,
    synced,
    nothing_known,
    package_missing,
    own_kind,
    params,
    of_a_kind,
    devices,
)
