"""``KerasEstimator`` and Lightning's ``TorchEstimator`` on a real Spark: one session.

Rows are small fractions of powers of two, so that no sum rounds: two ranks train to the bit what one process does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1500)]

LONG_S = 1200
PROGRAMS = Path(__file__).parents[1] / "programs"
SCRIPT = text_of(PROGRAMS / "other_estimators.py")
HOW = {"seconds": LONG_S}


def test_two_ranks_of_keras_equal_one_process_at_twice_the_rate(results: Mapping[str, Any]) -> None:
    assert results["keras_two_ranks"]["same"]
    assert (results["keras_two_ranks"]["rate"], results["keras_two_ranks"]["history"]) == (0.125, {"loss": 2})
    assert results["keras_two_ranks"]["files"] == ["keras/checkpoint", "keras/logs/events.out.tfevents.hvd"]


def test_keras_model_is_loaded_from_a_pipeline(results: Mapping[str, Any]) -> None:
    assert results["keras_two_ranks"]["back"] == [True, 16, "keras", True]


def test_run_of_keras_resumes_from_its_checkpoint(results: Mapping[str, Any]) -> None:
    assert results["keras_goes_on"] is True


def test_best_checkpoint_of_keras_is_used_on_request(results: Mapping[str, Any]) -> None:
    assert results["keras_best"] == [True, True, ["loss", "mae"], True]


def test_custom_layers_and_losses_are_sent(results: Mapping[str, Any]) -> None:
    assert results["keras_custom"] == ["DenseVector", ["loss", "val_loss"]]


def test_keras_estimator_is_loaded(results: Mapping[str, Any]) -> None:
    assert results["keras_saved"] == [2, True, 0.5, True]


def test_two_ranks_of_lightning_equal_one_process(results: Mapping[str, Any]) -> None:
    assert results["lightning_two_ranks"] == [True, [["epoch", "loss"]] * 2, True, True, 16]


def test_run_of_lightning_resumes_from_its_checkpoint(results: Mapping[str, Any]) -> None:
    assert results["lightning_goes_on"] == [True, [1, 2]]
    assert results["lightning_validates"] == [["epoch", "loss", "val_loss"]]


def test_lightning_trains_a_plain_torch_model(results: Mapping[str, Any]) -> None:
    assert results["legacy"] == [True, True], "also where model and optimizer were saved, each for itself"


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("no_loss", "Loss parameter is required for the model to compile"),
        ("no_optimizer", "Optimizer must be provided either as a parameter or as part of a compiled model"),
        ("no_keras_model", "model has to be an instance of keras.Model"),
        ("two_optimizers", "Parameter `optimizer` cannot be specified with a `LightningModule`"),
        ("nan_ends", "The loss of batch 0 is nan: terminate_on_nan ends the training."),
    ],
)
def test_unsupported_settings_are_refused(results: Mapping[str, Any], case: str, text: str) -> None:
    assert (results[case]["raised"], results[case]["text"]) == ("ValueError", text)
