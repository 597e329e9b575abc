"""Base class of the estimators for torch modules and Lightning: checks of model, optimizer and losses."""

from __future__ import annotations

from typing import Any

from hvd_kernel.spark.common.estimator import HorovodEstimator
from hvd_kernel.spark.common.job import TrainingJob


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
