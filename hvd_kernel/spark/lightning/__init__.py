"""``horovod.spark.lightning``: ``TorchEstimator`` fits a LightningModule to a DataFrame, ``TorchModel`` predicts.

The names are Horovod's. A batch is a dict of tensors by column: ``training_step(self, batch, number)`` takes
``batch["x"]``. Lightning 2 trains, with our strategy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hvd_kernel.spark.installed  # before anything below asks for PySpark

if TYPE_CHECKING:
    from hvd_kernel.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    """Import them when somebody asks: a rank imports the training alone, which needs no pyspark."""
    if name in __all__:
        return getattr(importlib.import_module("hvd_kernel.spark.lightning.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
