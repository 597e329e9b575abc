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

import hvd_kernel.spark.installed  # checks PySpark before the modules below import it

if TYPE_CHECKING:
    from hvd_kernel.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    """Import the estimator on demand: ranks import only the training, which does not need PySpark."""
    if name in __all__:
        return getattr(importlib.import_module("hvd_kernel.spark.torch.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
