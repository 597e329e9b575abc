"""Stores and params without a session of Spark: paths, files, defaults, setters, getters. In the environment `spark`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parents[1] / "programs"
SCRIPT = text_of(PROGRAMS / "stores.py")
UNSET = """
    num_proc model backend store optimizer loss loss_weights sample_weight_col feature_cols label_cols
    continuous_cols categorical_cols validation val_batch_size train_steps_per_epoch validation_steps_per_epoch
    shuffle_buffer_size run_id transformation_fn transformation_edit_fields transformation_removed_fields
    label_shapes gradient_compression random_seed mp_start_method input_shapes loss_constructors train_minibatch_fn
    data_module
"""
DEFAULTS = {
    **dict.fromkeys(UNSET.split()),
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


def test_the_prefix_chooses_the_kind(results: Mapping[str, Any]) -> None:
    assert results["kinds"] == [*["DBFSLocalStore"] * 3, "FilesystemStore", "HDFSStore", *["FilesystemStore"] * 2]
    assert results["own_kind"] == "Mine"


def test_paths_are_horovods(results: Mapping[str, Any]) -> None:
    assert results["paths"] == [
        "file://HERE/intermediate_train_data.3",
        "file://HERE/intermediate_val_data",
        "file://HERE/intermediate_test_data",
        "file://HERE/runs/r",
        "file://HERE/runs/r",
        "checkpoint",
        "file://HERE/runs/r/logs",
        "file://HERE",
    ]
    assert results["given_paths"] == ["file:///t.1", "file:///r/x", None, None, "c", False]


def test_spark_gets_its_own_schemes(results: Mapping[str, Any]) -> None:
    train = "intermediate_train_data.0"
    assert results["spark_has_other_schemes"] == [
        "s3a://b/x",
        f"dbfs:/x/{train}",
        f"file:///dbfs/x/{train}",
        "checkpoint.tf",
    ]


def test_files_are_complete_and_a_store_can_be_pickled(results: Mapping[str, Any]) -> None:
    assert results["files"] == [[False, "two", True, ["checkpoint"]]] * 2


def test_hdfs_is_reached_at_the_address_of_the_prefix(results: Mapping[str, Any]) -> None:
    connection = {"host": "name", "port": 8020, "user": "me", "kerb_ticket": None, "extra_conf": None}
    assert results["hdfs"] == [connection, "kept", True, "hdfs://name:8020/work/intermediate_train_data.0", True]


def test_a_local_folder_is_copied_into_its_run(results: Mapping[str, Any]) -> None:
    assert results["synced"] == ["1", True]


def test_unknown_scheme_is_named_with_the_remedy(results: Mapping[str, Any]) -> None:
    assert results["nothing_known"]["raised"] == "ConfigError"
    assert results["nothing_known"]["text"].startswith("Store nothing://x: no filesystem for nothing://: ")
    assert results["package_missing"]["text"].endswith("Remedy: pip install s3fs.")


def test_every_param_has_horovods_default(results: Mapping[str, Any]) -> None:
    assert results["params"]["table"] == DEFAULTS
    assert results["params"]["unlike"] == {}
    assert results["params"]["keras"]["backend_env"] == {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}
    assert (results["params"]["keras"]["custom_objects"], results["params"]["lightning"]) == ({}, [50, False, None])


def test_params_are_set_and_read_by_horovods_methods(results: Mapping[str, Any]) -> None:
    assert results["params"]["odd"] == [True] * 6
    assert (results["params"]["outputs"], results["params"]["set"], results["params"]["others"]) == (
        ["y__output", "z__output"],
        5,
        32,
    )
    assert results["of_a_kind"]["raised"] == "TypeError"
    assert results["of_a_kind"]["text"].startswith('Invalid param value given for param "batch_size".')


def test_the_drivers_devices_are_not_those_of_a_backends_ranks(results: Mapping[str, Any]) -> None:
    assert results["devices"] == {"A": "1", "B": "2"}
