"""``horovod.spark.keras``: ``KerasEstimator`` fits a Keras 3 model to a DataFrame, ``KerasModel`` predicts.

::

    estimator = KerasEstimator(
        num_proc=4, store=Store.create("/shared/runs"), model=model, optimizer=keras.optimizers.Adam(0.01), loss="mse",
        feature_cols=["x"], label_cols=["y"], epochs=3,
    )
    predictions = estimator.fit(train_frame).transform(test_frame)      # with a column y__output
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hvd_kernel.spark.installed  # checks PySpark before the modules below import it

if TYPE_CHECKING:
    from hvd_kernel.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]


def __getattr__(name: str) -> Any:
    """Import the estimator on demand: ranks import only the training, which does not need PySpark."""
    if name in __all__:
        return getattr(importlib.import_module("hvd_kernel.spark.keras.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
