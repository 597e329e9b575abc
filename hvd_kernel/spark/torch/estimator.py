"""``TorchEstimator`` and ``TorchModel``: Horovod's params, defaults and behaviour.

``ModuleEstimator`` is the base class of the estimators for torch modules and Lightning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.common.estimator import HorovodEstimator, HorovodModel
from hvd_kernel.spark.common.job import TrainingJob, checkpoint_of
from hvd_kernel.spark.common.params import ParamRow, declare
from hvd_kernel.spark.torch import remote
from hvd_kernel.spark.torch.remote import outputs_of, shapes, tensor


class ModuleEstimator(HorovodEstimator):
    """Trains a torch module with an optimizer of its parameters, and one loss or one for each label."""

    _run_prefix = "pytorch"

    def __init__(self, **params: Any) -> None:
        if params.get("loss") is not None and params.get("loss_constructors") is not None:
            raise ValueError("only one of loss_constructors and loss parameters can be specified.")
        super().__init__(**params)

    def _check_before(self) -> None:
        if self.getOptimizer() is None:
            raise ValueError("Optimizer parameter is required")
        if self.getLoss() is None and not self.getLossConstructors():
            raise ValueError("Loss parameter is required: loss=torch.nn.functional.mse_loss")

    def _model_and_optimizer(self) -> tuple[Any, Any]:
        """Return the model and an optimizer of its parameters."""
        model, optimizer = self.getModel(), self.getOptimizer()
        ids = {id(parameter) for parameter in model.parameters()}
        if all(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"]):
            return model, optimizer
        copied = type(optimizer)(model.parameters(), lr=1)  # of another copy of the model: as in Horovod, by its state
        copied.load_state_dict(optimizer.state_dict())
        return model, copied

    def _run_params(self, job: TrainingJob, history: Any) -> dict[str, Any]:
        """Return the params of a model that describe its training run."""
        return {
            "history": history,
            "feature_columns": [*job.features],
            "input_shapes": self.getInputShapes(),
            "label_columns": [*job.labels],
            "run_id": job.run_id,
            "_metadata": dict(job.columns),
            "loss": self.getLoss(),
            "loss_constructors": self.getLossConstructors(),
        }


_INPUTS = ParamRow("shape of each input, with -1 for the rows; None: the shapes of the columns")


@declare(
    {
        "input_shapes": _INPUTS,
        "loss_constructors": ParamRow("functions that create the losses on the ranks; excludes loss"),
        "train_minibatch_fn": ParamRow(
            "function that trains on a batch; None: forward, backward and an optimizer step"
        ),
        "data_module": ParamRow("reads the batches (common.datamodule): a class, or its name"),
    }
)
class TorchEstimator(ModuleEstimator):
    """Fits a torch model to a DataFrame; every param of the table is a keyword.

    Parameters
    ----------
    num_proc, backend
        Number of ranks, or a backend.
    store
        Store of data and runs.
    model, optimizer
        A ``torch.nn.Module`` and an optimizer for its parameters.
    loss
        ``loss(output, label)``, or one for each label.
    feature_cols, label_cols
        One input of the model for each feature, one output for each label.
    **params
        Other params; ``estimator.explainParams()`` lists all of them with their defaults.

    Raises
    ------
    ValueError
        Both loss and loss_constructors are set.
    TypeError
        A param is unknown.

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
        return (*self._model_and_optimizer(), checkpoint_of(job.store, job.run_id))

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> TorchModel:
        history, checkpoint = results[0]
        model, optimizer = copy.deepcopy(self._model_and_optimizer())
        remote.load(checkpoint, model, optimizer)
        model.eval()
        return TorchModel(model=model, optimizer=optimizer, **self._run_params(job, history))


@declare(
    {
        "optimizer": ParamRow("the optimizer at the end of the training"),
        "input_shapes": _INPUTS,
        "loss": ParamRow("the loss of the training"),
        "loss_constructors": ParamRow("functions that create the losses"),
    }
)
class TorchModel(HorovodModel):
    """A torch model that predicts on a DataFrame, in batches, on the CPU; ``getModel()`` is the torch module."""

    def _loader(self, columns: Mapping[str, Column]) -> Callable[[], Any]:
        features = self.getFeatureColumns()
        model = copy.deepcopy(self.getModel()).cpu().eval()
        return partial(_load, model, features, shapes(self.getInputShapes(), features, columns))


def _load(model: Any, features: Sequence[str], input_shapes: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    torch.set_num_threads(1)  # other tasks use the other cores

    @torch.no_grad()
    def forward(arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        inputs = [
            tensor(array if array.flags.writeable else array.copy(), name).reshape(shape)
            for array, name, shape in zip(arrays, features, input_shapes, strict=True)
        ]
        return [output.numpy() for output in outputs_of(model(*inputs))]

    return forward
