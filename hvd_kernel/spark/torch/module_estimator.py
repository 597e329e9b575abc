"""What the estimators of torch modules share, Lightning's too: model, optimizer and losses that fit each other."""

from __future__ import annotations

from typing import Any

from hvd_kernel.spark.common.estimator import HorovodEstimator
from hvd_kernel.spark.common.job import TrainingJob


class ModuleEstimator(HorovodEstimator):
    """Trains a torch module with an optimizer of its parameters and a loss, or one for each label."""

    _runs_begin_with = "pytorch"

    def __init__(self, **params: Any) -> None:
        if params.get("loss") is not None and params.get("loss_constructors") is not None:
            raise ValueError("only one of loss_constructors and loss parameters can be specified.")
        super().__init__(**params)

    def _check_before(self) -> None:
        if self.getOptimizer() is None:
            raise ValueError("Optimizer parameter is required")
        if self.getLoss() is None and not self.getLossConstructors():
            raise ValueError("Loss parameter is required: loss=torch.nn.functional.mse_loss")

    def _both(self) -> tuple[Any, Any]:
        """Return model and optimizer, the latter of the former's parameters."""
        model, optimizer = self.getModel(), self.getOptimizer()
        own = {id(each) for each in model.parameters()}
        if all(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            return model, optimizer
        fresh = type(optimizer)(model.parameters(), lr=1)  # of an equal model: as Horovod, by its state alone
        fresh.load_state_dict(optimizer.state_dict())
        return model, fresh

    def _of_the_run(self, job: TrainingJob, history: Any) -> dict[str, Any]:
        """Return what a model is told of the run that it comes of."""
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
