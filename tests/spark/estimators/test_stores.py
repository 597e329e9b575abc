"""Stores and params without a session of Spark: paths, files, defaults, setters, getters. In the environment `spark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = """
import os, pickle
from pathlib import Path
import pyarrow.fs
from hvd_kernel.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store
here = os.getcwd()

def kinds():
    os.environ["DATABRICKS_RUNTIME_VERSION"] = "15"
    on_databricks = [type(Store.create(path)).__name__ for path in ("dbfs:/x", "/dbfs/x", "file:///dbfs/x", "/tmp/x")]
    del os.environ["DATABRICKS_RUNTIME_VERSION"]
    return on_databricks + [type(Store.create(path)).__name__ for path in ("hdfs://h:9/x", "memory://x", "/dbfs/x")]

def paths():
    store = LocalStore(here)
    return [each.replace(here, "HERE") for each in (
        store.get_train_data_path(3), store.get_val_data_path(), store.get_test_data_path(), store.get_run_path("r"),
        store.get_checkpoint_path("r"), store.get_checkpoint_filename(), store.get_logs_path("r"), store.spark_path(here))]

def given_paths():
    store = LocalStore(here, train_path="/t", runs_path="/r", save_runs=False, checkpoint_filename="c")
    return [store.get_train_data_path(1), store.get_run_path("x"), store.get_checkpoint_path("x"), store.get_logs_path("x"),
            store.get_checkpoint_filename(), store.saving_runs()]

def spark_has_other_schemes():
    store = FilesystemStore.__new__(FilesystemStore)
    dbfs = DBFSLocalStore("dbfs:/x")
    return [FilesystemStore.spark_path(store, "s3://b/x"), dbfs.spark_path(dbfs.get_train_data_path(0)),
            dbfs.get_train_data_path(0), dbfs.get_checkpoint_filename()]

def files():
    told = []
    for store in (LocalStore(here + "/own"), Store.create("memory://own")):
        path = store.get_run_path("r") + "/checkpoint"
        before = store.exists(path)
        store.write(path, b"one")
        store.write(path, b"two")
        again = pickle.loads(pickle.dumps(store))
        told.append([before, again.read(path).decode(), again == store, sorted(
            each.rpartition("/")[2] for each in store.fs.find(store.inside(store.get_run_path("r"))))])
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
    return [made[0], again.read("hdfs://name:8020/work/runs/r/checkpoint").decode(), Path(here, "work/runs/r/checkpoint").exists(),
            store.get_train_data_path(0), HDFSStore(**store.description()) == store]

def synced():
    store = LocalStore(here + "/sync")
    remote = store.to_remote("r", 2)
    with remote.get_local_output_dir() as folder:
        Path(folder, "logs").mkdir()
        Path(folder, "logs", "a").write_text("1")
        remote.sync(folder)
    return [store.read(store.get_run_path("r") + "/logs/a").decode(), remote.train_data_path.endswith("intermediate_train_data.2")]

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
    from pyspark import SparkContext
    from hvd_kernel.spark.keras import KerasEstimator
    from hvd_kernel.spark.lightning import TorchEstimator as Light
    from hvd_kernel.spark.torch import TorchEstimator, TorchModel
    torch_one, keras_one, light_one = TorchEstimator(), KerasEstimator(), Light()
    table = {param.name: torch_one.getOrDefault(param) for param in torch_one.params}
    unlike = {name: (table[name], one.getOrDefault(name)) for one in (keras_one, light_one) for name in table
              if one.hasParam(name) and one.getOrDefault(name) != table[name]}
    model = TorchModel(label_columns=["y", "z"])
    assert torch_one.setBatchSize(5) is torch_one
    return {"table": table, "unlike": unlike,
            "keras": {name: keras_one.getOrDefault(name) for name in ("custom_objects", "checkpoint_callback", "backend_env")},
            "lightning": [light_one.getLogEveryNSteps(), light_one.getTerminateOnNan(), light_one.getTrainerArgs()],
            "odd": [hasattr(torch_one, name) for name in ("setTrainReaderNumWorker", "setShufflingBufferSize", "getInMemoryCacheAll",
                    "getMpStartMethod", "setValReaderNumWorker")] + [hasattr(model, "setLabelColoumns")],
            "outputs": model.getOutputCols(), "set": torch_one.getBatchSize(), "others": TorchEstimator().getBatchSize()}

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

tell(kinds, paths, given_paths, spark_has_other_schemes, files, hdfs, synced, nothing_known, package_missing, own_kind, params, of_a_kind, devices)
"""
DEFAULTS = {
    **dict.fromkeys(
        [
            "num_proc",
            "model",
            "backend",
            "store",
            "optimizer",
            "loss",
            "loss_weights",
            "sample_weight_col",
            "feature_cols",
            "label_cols",
            "continuous_cols",
            "categorical_cols",
            "validation",
            "val_batch_size",
            "train_steps_per_epoch",
            "validation_steps_per_epoch",
            "shuffle_buffer_size",
            "run_id",
            "transformation_fn",
            "transformation_edit_fields",
            "transformation_removed_fields",
            "label_shapes",
            "gradient_compression",
            "random_seed",
            "mp_start_method",
            "input_shapes",
            "loss_constructors",
            "train_minibatch_fn",
            "data_module",
        ]
    ),
    "metrics": [],
    "callbacks": [],
    "batch_size": 32,
    "epochs": 1,
    "shuffle": True,
    "partitions_per_process": 10,
    "train_reader_num_workers": 2,
    "val_reader_num_workers": 2,
    "reader_pool_type": "thread",
    "inmemory_cache_all": False,
    "compress_sparse_cols": False,
    "backward_passes_per_step": 1,
    "use_gpu": True,
    "verbose": 1,
    "best_checkpoint": False,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(SCRIPT, tmp_path_factory.mktemp("stores"))


def test_the_prefix_chooses_the_kind(told: Mapping[str, Any]) -> None:
    assert told["kinds"] == [*["DBFSLocalStore"] * 3, "FilesystemStore", "HDFSStore", *["FilesystemStore"] * 2]
    assert told["own_kind"] == "Mine"


def test_paths_are_horovods(told: Mapping[str, Any]) -> None:
    assert told["paths"] == [
        "file://HERE/intermediate_train_data.3",
        "file://HERE/intermediate_val_data",
        "file://HERE/intermediate_test_data",
        "file://HERE/runs/r",
        "file://HERE/runs/r",
        "checkpoint",
        "file://HERE/runs/r/logs",
        "file://HERE",
    ]
    assert told["given_paths"] == ["file:///t.1", "file:///r/x", None, None, "c", False]


def test_spark_is_told_its_own_schemes(told: Mapping[str, Any]) -> None:
    train = "intermediate_train_data.0"
    assert told["spark_has_other_schemes"] == [
        "s3a://b/x",
        f"dbfs:/x/{train}",
        f"file:///dbfs/x/{train}",
        "checkpoint.tf",
    ]


def test_files_are_whole_and_a_store_travels(told: Mapping[str, Any]) -> None:
    assert told["files"] == [[False, "two", True, ["checkpoint"]]] * 2


def test_hdfs_is_reached_where_the_prefix_says(told: Mapping[str, Any]) -> None:
    connection = {"host": "name", "port": 8020, "user": "me", "kerb_ticket": None, "extra_conf": None}
    assert told["hdfs"] == [connection, "kept", True, "hdfs://name:8020/work/intermediate_train_data.0", True]


def test_a_local_folder_is_copied_into_its_run(told: Mapping[str, Any]) -> None:
    assert told["synced"] == ["1", True]


def test_a_scheme_that_nobody_knows_is_named_with_the_remedy(told: Mapping[str, Any]) -> None:
    assert told["nothing_known"]["raised"] == "ConfigError"
    assert told["nothing_known"]["text"].startswith("Store nothing://x: no filesystem for nothing://: ")
    assert told["package_missing"]["text"].endswith("Remedy: pip install s3fs.")


def test_every_param_has_horovods_default(told: Mapping[str, Any]) -> None:
    assert told["params"]["table"] == DEFAULTS
    assert told["params"]["unlike"] == {}
    assert told["params"]["keras"]["backend_env"] == {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}
    assert (told["params"]["keras"]["custom_objects"], told["params"]["lightning"]) == ({}, [50, False, None])


def test_params_are_set_and_read_by_horovods_methods(told: Mapping[str, Any]) -> None:
    assert told["params"]["odd"] == [True] * 6
    assert (told["params"]["outputs"], told["params"]["set"], told["params"]["others"]) == (
        ["y__output", "z__output"],
        5,
        32,
    )
    assert told["of_a_kind"]["raised"] == "TypeError"
    assert told["of_a_kind"]["text"].startswith('Invalid param value given for param "batch_size".')


def test_the_drivers_devices_are_not_those_of_a_backends_ranks(told: Mapping[str, Any]) -> None:
    assert told["devices"] == {"A": "1", "B": "2"}
