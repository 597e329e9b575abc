"""``horovod.spark.torch``: ``TorchEstimator`` fits a torch model to a DataFrame, ``TorchModel`` predicts.

::

    estimator = TorchEstimator(
        num_proc=4, store=Store.create("/shared/runs"), model=model, optimizer=optimizer,
        loss=torch.nn.functional.mse_loss, feature_cols=["x"], label_cols=["y"], epochs=3,
    )
    predictions = estimator.fit(train_frame).transform(test_frame)      # with a column y__output
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hvd_kernel.spark.installed  # before anything below asks for PySpark

if TYPE_CHECKING:
    from hvd_kernel.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    """Import them when somebody asks: a rank imports the training alone, which needs no pyspark."""
    if name in __all__:
        return getattr(importlib.import_module("hvd_kernel.spark.torch.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
