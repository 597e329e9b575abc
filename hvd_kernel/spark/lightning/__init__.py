"""``horovod.spark.lightning``: ``TorchEstimator`` fits a LightningModule to a DataFrame, ``TorchModel`` predicts.

The names are Horovod's. A batch is a dict of tensors by column: ``training_step(self, batch, number)`` receives
``batch["x"]``. Lightning 2 trains, with our strategy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hvd_kernel.spark.installed  # checks PySpark before the modules below import it

if TYPE_CHECKING:
    from hvd_kernel.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    """Import the estimator on demand: ranks import only the training, which does not need PySpark."""
    if name in __all__:
        return getattr(importlib.import_module("hvd_kernel.spark.lightning.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
