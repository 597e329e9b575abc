"""``TorchEstimator`` and ``TorchModel`` on a real Spark: two ranks in local[2], and a load in another process.

Rows are small fractions of powers of two, so that no sum rounds: two ranks train to the bit what one process does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1500)]

LONG_S = 1200  # 25 fits and as many writes: 400 s beside a load of 16

PROGRAMS = Path(__file__).parents[1] / "programs"
SCRIPT = text_of("torch_line", PROGRAMS / "torch_estimator.py")
OTHER = text_of("torch_line", PROGRAMS / "torch_estimator_loads.py")
TRANSFORM_SPEED = text_of(PROGRAMS / "transform_speed.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch")


@pytest.fixture(scope="module")
def results(folder: Path) -> Mapping[str, Any]:
    return outcomes(SCRIPT, folder, seconds=LONG_S)


def test_two_ranks_equal_one_process_at_twice_the_rate(results: Mapping[str, Any]) -> None:
    assert results["two_ranks"]["same"]
    assert results["two_ranks"]["rate"] == 0.125


def test_history_and_files_of_a_run_have_horovods_form(results: Mapping[str, Any]) -> None:
    found = results["two_ranks"]
    assert found["history"] == [[n, ["epoch", "train"], ["all_metrics", "loss"]] for n in range(2)]
    assert (found["run"], found["files"]) == ("two", ["two/checkpoint", "two/logs/events.out.tfevents.hvd"])


def test_a_pipeline_predicts_the_same_in_another_process(results: Mapping[str, Any], folder: Path) -> None:
    again = outcomes(OTHER, folder)
    assert again["loaded"] == results["two_ranks"]["first"]
    assert again["kept"] == ["two", 2, 0.125, "dense"]


def test_existing_run_resumes_from_its_checkpoint(results: Mapping[str, Any]) -> None:
    assert results["goes_on"] is True


def test_rows_are_split_by_column_or_share(results: Mapping[str, Any]) -> None:
    assert results["splits"] == [["epoch", "train", "validation"], ["all_metrics", "loss"], ["group_0_y"], [True]]


def test_best_checkpoint_is_used_on_request(results: Mapping[str, Any]) -> None:
    assert results["best"] == [True, True, True, False]


def test_weights_of_rows_multiply_their_losses(results: Mapping[str, Any]) -> None:
    assert results["row_weights"] == [True, True]


def test_batch_size_is_that_of_the_user(results: Mapping[str, Any]) -> None:
    assert results["own_minibatch"] == [[[12, 2], [12, 1], None], [[4, 2], [4, 1], None]]


def test_rows_are_transformed(results: Mapping[str, Any]) -> None:
    assert results["transformed"] is True


def test_custom_data_module_is_read(results: Mapping[str, Any]) -> None:
    given = {"shard": [0, 1], "fields": ["x", "y"], "steps": 1, "exists": True}
    assert results["data_module"] == [given, True]


def test_training_uses_data_in_the_store(results: Mapping[str, Any]) -> None:
    assert results["parquet"] == [True, "dense"]


def test_predictions_have_their_labels_type(results: Mapping[str, Any]) -> None:
    assert results["outputs"] == ["integer", "DenseVector", 3, "DenseVector", ["a", "b", "y", "x", "guess"]]


def test_existing_column_is_not_overwritten(results: Mapping[str, Any]) -> None:
    assert results["twice"]["raised"] == "ValueError"
    assert results["twice"]["text"] == "Column y__output exists already in the DataFrame: name others by setOutputCols."


def test_a_cross_validator_searches_its_params(results: Mapping[str, Any]) -> None:
    assert results["searched"] == [2, True, 6]


def test_estimator_is_loaded_with_store_and_backend(results: Mapping[str, Any]) -> None:
    assert results["saved_estimator"] == [True, 4, True, {"num_proc": 2, "env": {}, "start_timeout": 77}, True, True]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("no_column", "Label column z does not exist in the DataFrame"),
        ("no_feature", "Feature column q does not exist in the DataFrame"),
        ("no_labels", "Parameter label_columns cannot be None or empty"),
        ("bad_split", "Validation split 1.5 must be in the range: [0, 1)"),
        ("no_model", "Model parameter is required"),
        ("two_sizes", 'At most one of parameters "backend" and "num_proc" may be specified'),
        ("no_files", "num_proc=1 and partitions_per_process=0 must both be > 0"),
        ("both_losses", "only one of loss_constructors and loss parameters can be specified."),
    ],
)
def test_refusals_have_horovods_messages(results: Mapping[str, Any], case: str, text: str) -> None:
    assert (results[case]["raised"], results[case]["text"]) == ("ValueError", text)


def test_unsupported_arguments_are_named(results: Mapping[str, Any]) -> None:
    assert results["empty_split"]["text"].startswith(
        "Validation DataFrame does not have any samples with validation param held"
    )
    assert results["no_store"]["text"].startswith("Store parameter is required: store=Store.create(")
    assert results["unknown"]["text"].startswith("TorchEstimator has no param epoch; it has backend,")
    assert results["lists_differ"]["text"].startswith("Column x holds no numbers, or lists of several lengths: ")


def test_store_describes_its_data_in_json(results: Mapping[str, Any], folder: Path) -> None:
    assert results["parquet"][0]
    kept = json.loads((folder / "store" / "intermediate_train_data.0" / "_hvd_columns.json").read_text())
    assert (kept["rows"], [each["name"] for each in kept["columns"]]) == (16, ["x", "y"])
    assert not [each for each in (folder / "store").rglob("*") if each.suffix in {".pkl", ".pickle"}]


def test_batches_are_ten_times_as_fast_as_single_rows(tmp_path: Path) -> None:
    """Compare ``transform`` with a model that is called row by row, as in Horovod, on 100,000 rows."""
    by_row, ours, ratio = outcomes(TRANSFORM_SPEED, tmp_path, seconds=1200)["ratio"]
    print(f"row by row {by_row:.2f} s, transform {ours:.2f} s: {ratio:.1f} times")
    assert ratio >= 10
