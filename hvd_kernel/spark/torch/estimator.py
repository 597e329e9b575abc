"""``TorchEstimator`` and ``TorchModel``: Horovod's params, defaults and behaviour."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from hvd_kernel.spark.common.data.columns import Column
from hvd_kernel.spark.common.estimator import HorovodModel
from hvd_kernel.spark.common.job import TrainingJob, checkpoint_of
from hvd_kernel.spark.common.params import ParamRow, declare
from hvd_kernel.spark.torch import remote
from hvd_kernel.spark.torch.module_estimator import ModuleEstimator
from hvd_kernel.spark.torch.tensors import outputs_of, shapes, tensor

_INPUTS = ParamRow("shape of each input, with -1 for the rows; None: what the columns hold")


@declare(
    {
        "input_shapes": _INPUTS,
        "loss_constructors": ParamRow("functions that make the losses on the ranks; excludes loss"),
        "train_minibatch_fn": ParamRow("what is done with a batch; None: forward, backward and a step"),
        "data_module": ParamRow("reads the batches (common.datamodule): a class, or its name"),
    }
)
class TorchEstimator(ModuleEstimator):
    """Fits a torch model to a DataFrame; every param of the table is a keyword.

    Parameters
    ----------
    num_proc, backend
        Ranks: a number, or who runs them.
    store
        Where data and runs are kept.
    model, optimizer
        A ``torch.nn.Module`` and an optimizer of its parameters.
    loss
        ``loss(output, label)``, or one for each label.
    feature_cols, label_cols
        One input of the model for each feature, one output for each label.
    **params
        More: ``estimator.explainParams()`` has all of them, with their defaults.

    Raises
    ------
    ValueError
        loss and loss_constructors are given both.
    TypeError
        There is no param of this name.

    Examples
    --------
    In a PySpark session::

        estimator = TorchEstimator(
            num_proc=2, store=Store.create("/tmp/runs"), model=model, loss=torch.nn.functional.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1), feature_cols=["x"], label_cols=["y"],
        )
        estimator.fit(frame).transform(frame).select("y__output")
    """

    def _function(self) -> Callable[..., Any]:
        return remote.train

    def _arguments(self, job: TrainingJob) -> tuple[Any, ...]:
        return (*self._both(), checkpoint_of(job.store, job.run_id))

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> TorchModel:
        history, checkpoint = results[0]
        model, optimizer = copy.deepcopy(self._both())
        remote.load(checkpoint, model, optimizer)
        model.eval()
        return TorchModel(model=model, optimizer=optimizer, **self._of_the_run(job, history))


@declare(
    {
        "optimizer": ParamRow("the optimizer, as it was at the end"),
        "input_shapes": _INPUTS,
        "loss": ParamRow("the loss that it was trained with"),
        "loss_constructors": ParamRow("functions that make the losses"),
    }
)
class TorchModel(HorovodModel):
    """A torch model that predicts on a DataFrame, in batches, on the CPU; ``getModel()`` is the torch module."""

    def _loader(self, columns: Mapping[str, Column]) -> Callable[[], Any]:
        features = self.getFeatureColumns()
        model = copy.deepcopy(self.getModel()).cpu().eval()
        return partial(_load, model, features, shapes(self.getInputShapes(), features, columns))


def _load(model: Any, features: Sequence[str], given: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    torch.set_num_threads(1)  # other tasks have the other cores

    @torch.no_grad()
    def forward(arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        inputs = [
            tensor(array if array.flags.writeable else array.copy(), name).reshape(shape)
            for array, name, shape in zip(arrays, features, given, strict=True)
        ]
        return [output.numpy() for output in outputs_of(model(*inputs))]

    return forward
