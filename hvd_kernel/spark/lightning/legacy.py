"""A torch model with its optimizer and losses as a LightningModule, for estimators without a LightningModule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as lightning
import torch

from hvd_kernel.spark.torch import losses
from hvd_kernel.spark.torch.tensors import outputs_of


class Module(lightning.LightningModule):
    """Trains a model like ``horovod.spark.torch.TorchEstimator``, with the params of that estimator."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Any,
        *,
        weights: Sequence[float],
        features: Sequence[str],
        labels: Sequence[str],
        sample_weight: str | None,
    ) -> None:
        super().__init__()
        self.model, self._torch_optimizer = model, optimizer
        self._losses = losses.as_list(loss)
        self._names = (list(features), list(labels), sample_weight)
        self._weights = list(weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the model's outputs."""
        return self.model(*inputs)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the estimator."""
        return self._torch_optimizer

    def training_step(self, batch: Mapping[str, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del number
        return self._loss(batch, "loss")

    def validation_step(self, batch: Mapping[str, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del number
        return self._loss(batch, "val_loss")

    def _loss(self, batch: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        features, labels, weight = self._names
        outputs = outputs_of(self(*(batch[feature] for feature in features)))
        expected = losses.fitted(outputs, [batch[label].float() for label in labels])
        rows = None if weight is None else batch[weight]
        loss = losses.weighted(outputs, expected, self._losses, self._weights, rows)
        self.log(name, loss, on_step=False, on_epoch=True, batch_size=len(outputs[0]))
        return loss
