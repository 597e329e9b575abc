"""``TorchEstimator`` and ``TorchModel`` for LightningModules: Horovod's params and defaults, on Lightning 2."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as lightning

from hvd_kernel.spark.common.job import TrainingJob, checkpoint_of
from hvd_kernel.spark.common.params import ParamRow, declare
from hvd_kernel.spark.lightning import remote
from hvd_kernel.spark.lightning.remote import Module
from hvd_kernel.spark.torch import estimator as plain
from hvd_kernel.spark.torch.estimator import ModuleEstimator


@declare(
    {
        "input_shapes": ParamRow("shape of each input, with -1 for the rows; None: the shapes of the columns"),
        "loss_constructors": ParamRow("functions that create the losses; not for a LightningModule"),
        "train_minibatch_fn": ParamRow("accepted: the module has its training_step"),
        "num_gpus": ParamRow("number of devices of each rank; None: 1"),
        "logger": ParamRow("a logger of Lightning for rank 0"),
        "log_every_n_steps": ParamRow("see lightning.Trainer", 50),
        "data_module": ParamRow("reads the batches (common.datamodule): a class, or its name"),
        "loader_num_epochs": ParamRow("accepted: batches continue from epoch to epoch"),
        "terminate_on_nan": ParamRow("whether to stop the training if the loss is not finite", False),
        "profiler": ParamRow("see lightning.Trainer"),
        "trainer_args": ParamRow("other arguments of lightning.Trainer, which override ours"),
        "debug_data_loader": ParamRow("accepted", False),
        "train_async_data_loader_queue_size": ParamRow("accepted: a thread reads ahead"),
        "val_async_data_loader_queue_size": ParamRow("accepted: a thread reads ahead"),
    }
)
class TorchEstimator(ModuleEstimator):
    """Fits a LightningModule to a DataFrame; every param of the table is a keyword.

    Parameters
    ----------
    num_proc, backend
        Number of ranks, or a backend.
    store
        Store of data and runs.
    model
        A LightningModule, whose ``training_step`` receives a dict of tensors by column; or a torch model, with
        ``optimizer`` and ``loss`` as for ``horovod.spark.torch.TorchEstimator``.
    feature_cols, label_cols
        Columns of the batch; the features are the arguments of ``forward`` in ``transform``.
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
            num_proc=2, store=Store.create("/tmp/runs"), model=Digits(), feature_cols=["x"], label_cols=["y"], epochs=3,
        )
        estimator.fit(frame).transform(frame).select("y__output")
    """

    def _check_before(self) -> None:
        if isinstance(self.getModel(), lightning.LightningModule):
            if self.getOptimizer() is not None:
                raise ValueError("Parameter `optimizer` cannot be specified with a `LightningModule`")
        else:
            super()._check_before()

    def _function(self) -> Callable[..., Any]:
        return remote.train

    def _arguments(self, job: TrainingJob) -> tuple[Any, ...]:
        return self._module(job), checkpoint_of(job.store, job.run_id)

    def _module(self, job: TrainingJob) -> Any:
        if isinstance(self.getModel(), lightning.LightningModule):
            return copy.deepcopy(self.getModel())
        model, optimizer = copy.deepcopy(self._model_and_optimizer())
        loss = self.getLoss() or [make(model=model, optimizer=optimizer) for make in self.getLossConstructors()]
        return Module(
            model,
            optimizer,
            loss,
            weights=job.weights(),
            features=job.features,
            labels=job.labels,
            sample_weight=job.weight,
        )

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> TorchModel:
        history, checkpoint = results[0]
        module = self._module(job)
        module.load_state_dict(remote.state_of(checkpoint)["state_dict"])
        model = module.model if isinstance(module, Module) else module
        return TorchModel(model=model.eval(), **self._run_params(job, history))


class TorchModel(plain.TorchModel):
    """A LightningModule that predicts on a DataFrame, in batches, on the CPU; ``getModel()`` is the module."""
