"""``KerasEstimator`` and ``KerasModel``: Horovod's params, defaults and behaviour, for Keras 3 on any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras

from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.common.estimator import HorovodEstimator, HorovodModel
from hvd_kernel.spark.common.job import TrainingJob, checkpoint_of
from hvd_kernel.spark.common.params import ParamRow, declare
from hvd_kernel.spark.keras import remote
from hvd_kernel.spark.keras.remote import (
    PackedModel,
    PackedOptimizer,
    assign,
    from_bytes,
    load_forward,
    pack_model,
    pack_optimizer,
    with_registered_names,
)

_CUSTOM = ParamRow("custom layers, losses and other objects by name", {})


@declare(
    {
        "custom_objects": _CUSTOM,
        "checkpoint_callback": ParamRow(
            "a ModelCheckpoint for rank 0; with hvd.callbacks.BestModelCheckpoint the best model is returned"
        ),
        "data_module": ParamRow("reads the batches (common.datamodule): a class, or its name"),
        "backend_env": ParamRow("environment variables of the ranks", {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}),
        "tensorflow_dataset_prefetch_buffer_size": ParamRow("accepted: a thread reads ahead", 0),
    }
)
class KerasEstimator(HorovodEstimator):
    """Fits a Keras 3 model to a DataFrame; every param of the table is a keyword.

    Parameters
    ----------
    num_proc, backend
        Number of ranks, or a backend.
    store
        Store of data and runs.
    model
        A built ``keras.Model``.
    optimizer, loss, metrics
        See ``model.compile``; the default optimizer is that of the compiled model.
    feature_cols, label_cols
        One input of the model for each feature, one output for each label.
    **params
        Other params; ``estimator.explainParams()`` lists all of them with their defaults.

    Raises
    ------
    TypeError
        A param is unknown.

    Examples
    --------
    In a PySpark session::

        estimator = KerasEstimator(
            num_proc=2, store=Store.create("/tmp/runs"), model=model, optimizer=keras.optimizers.SGD(0.1), loss="mse",
            feature_cols=["x"], label_cols=["y"],
        )
        estimator.fit(frame).transform(frame).select("y__output")
    """

    _run_prefix = "keras"

    def _check_before(self) -> None:
        if not isinstance(self.getModel(), keras.Model):
            raise ValueError("model has to be an instance of keras.Model")  # noqa: TRY004 - Horovod's error class
        if not self.getLoss():
            raise ValueError("Loss parameter is required for the model to compile")
        if self._optimizer() is None:
            raise ValueError("Optimizer must be provided either as a parameter or as part of a compiled model")
        if not isinstance(self._optimizer(), str | keras.optimizers.Optimizer):
            raise ValueError(  # noqa: TRY004 - Horovod's error class
                "optimizer has to be an instance of keras.optimizers.Optimizer"
            )

    def _optimizer(self) -> Any:
        return self.getOptimizer() or getattr(self.getModel(), "optimizer", None)

    def _function(self) -> Callable[..., Any]:
        return remote.train

    def _arguments(self, job: TrainingJob) -> tuple[Any, ...]:
        compiled = remote.Compiled(
            pack_optimizer(self._optimizer()),
            self.getLoss(),
            self.getLossWeights(),
            self.getMetrics(),
            with_registered_names(self.getCustomObjects()),
        )
        return pack_model(self.getModel()), compiled, checkpoint_of(job.store, job.run_id)

    def _environment(self) -> dict[str, str]:
        return {"KERAS_BACKEND": keras.backend.backend(), **(self.getBackendEnv() or {})}

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> KerasModel:
        history, checkpoint = results[0]
        weights, values = from_bytes(checkpoint)
        model = pack_model(self.getModel()).model(with_registered_names(self.getCustomObjects()))
        model.set_weights(list(weights))
        optimizer = pack_optimizer(self._optimizer()).optimizer(model)
        optimizer.build(model.trainable_variables)
        assign(optimizer.variables, values)
        model.compile(
            optimizer, loss=self.getLoss(), loss_weights=self.getLossWeights(), metrics=self.getMetrics() or None
        )
        return KerasModel(
            history=history,
            model=model,
            feature_columns=[*job.features],
            label_columns=[*job.labels],
            custom_objects=self.getCustomObjects(),
            run_id=job.run_id,
            _metadata=dict(job.columns),
            _floatx=keras.config.floatx(),
        )

    def packed(self, objects: dict[str, Any]) -> bytes:
        """Pickle params that JSON cannot store, model and optimizer as configuration and arrays."""
        return super().packed(_packed(objects))

    @classmethod
    def unpacked(cls, data: bytes, params: dict[str, Any]) -> dict[str, Any]:
        """Return the objects of ``packed``."""
        return _unpacked(super().unpacked(data, params), params)


@declare({"custom_objects": _CUSTOM, "_floatx": ParamRow("Keras' default float type during the training", "float32")})
class KerasModel(HorovodModel):
    """A Keras model that predicts on a DataFrame, in batches; ``getModel()`` is the keras.Model."""

    def _loader(self, columns: Mapping[str, Column]) -> Callable[[], Any]:
        del columns
        custom = with_registered_names(self.getCustomObjects())
        return partial(load_forward, pack_model(self.getModel()), custom, self.getOrDefault("_floatx"))

    def packed(self, objects: dict[str, Any]) -> bytes:
        """Pickle params that JSON cannot store, the model as configuration and arrays without compile arguments."""
        return super().packed(_packed(objects))

    @classmethod
    def unpacked(cls, data: bytes, params: dict[str, Any]) -> dict[str, Any]:
        """Return the objects of ``packed``."""
        return _unpacked(super().unpacked(data, params), params)


def _packed(objects: dict[str, Any]) -> dict[str, Any]:
    packers = {"model": pack_model, "optimizer": pack_optimizer}
    return {name: packers[name](value) if name in packers else value for name, value in objects.items()}


def _unpacked(objects: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    custom = with_registered_names(objects.get("custom_objects") or params.get("custom_objects") or {})
    model = objects.get("model")
    if isinstance(model, PackedModel):
        objects["model"] = model.model(custom)
    if isinstance(optimizer := objects.get("optimizer"), PackedOptimizer):
        objects["optimizer"] = optimizer.optimizer(objects.get("model"))
    return objects
