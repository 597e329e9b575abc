"""Estimator and model of any framework: stages of pyspark.ml that train on ranks and predict by whole batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator, Model

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - the others need what it looks for
from hvd_kernel.spark.common.backend import Backend, SparkBackend
from hvd_kernel.spark.common.data.columns import Column
from hvd_kernel.spark.common.data.prepare import Prepared, Wanted, found, prepare
from hvd_kernel.spark.common.job import TrainingJob
from hvd_kernel.spark.common.params import EstimatorParams, ModelParams, check_validation
from hvd_kernel.spark.common.predict import Forward, with_predictions
from hvd_kernel.spark.common.saving import Saved
from hvd_kernel.spark.common.store import Store

_given: set[str] = set()


class HorovodEstimator(Estimator[Any], EstimatorParams, Saved):
    """Trains a model on the rows of a DataFrame."""

    _runs_begin_with = "run"

    def fit(self, df: Any, params: Any = None) -> Any:
        """Train on a DataFrame.

        The rows go into the store first, once for each DataFrame. ``params``: a param map that overrides, or a list.

        Raises
        ------
        ValueError
            A param is missing, or does not fit the DataFrame; the message says which.
        RankFailed
            A rank raised; ``__cause__`` is its exception.
        """
        return super().fit(df, params)

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on parquet files that are in the store already, at ``store.get_train_data_path(dataset_idx)``."""
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        backend = self._backend()
        return self._train(backend, found(self._store(), self._wanted(backend), dataset_idx))

    def _fit(self, dataset: Any) -> Any:
        backend = self._backend()
        wanted = self._wanted(backend)
        self._check_before()
        return self._train(backend, prepare(dataset, self._store(), wanted))

    def _train(self, backend: Backend, prepared: Prepared) -> Any:
        self._check_params(prepared.columns)
        job = self._job(prepared)
        results = backend.run(self._function(), args=(job, *self._arguments(job)), env=self._environment())
        return self._model(job, results)

    # Of each framework.

    def _check_before(self) -> None:
        """Raise ValueError where params cannot be, before anything is written."""

    def _function(self) -> Callable[..., Any]:
        """Return what each rank calls, with the job and ``_arguments``."""
        raise NotImplementedError

    def _arguments(self, job: TrainingJob) -> tuple[Any, ...]:
        raise NotImplementedError

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> Any:
        """Return the model of what the ranks have returned."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        """Return variables that the ranks need."""
        return {}

    # What is the same for all.

    def _job(self, prepared: Prepared) -> TrainingJob:
        labels, weight = self.getLabelCols(), self.getSampleWeightCol()
        others = [name for name in prepared.columns if name not in {*labels, weight}]
        run_id = self.getRunId() or _fresh(self._store(), self._runs_begin_with)
        options = {
            param.name: self.getOrDefault(param)
            for param in self.params
            if self.hasDefault(param) and param.name not in {"model", "optimizer", "backend", "store"}
        }
        features = self.getFeatureCols() or others
        return TrainingJob(
            self._store(), run_id, prepared.index, prepared.train, prepared.validation, features, labels, options
        )

    def _store(self) -> Store:
        store: Store | None = self.getStore()
        if store is None:
            raise ValueError(
                "Store parameter is required: store=Store.create(...) of a folder that driver and executors share, "
                "or of hdfs://, s3:// ..."
            )
        return store

    def _backend(self) -> Backend:
        backend: Backend | None = self.getBackend()
        if backend is None:
            return SparkBackend(self.getNumProc())
        if self.getNumProc() is not None:
            raise ValueError('At most one of parameters "backend" and "num_proc" may be specified')
        return backend

    def _wanted(self, backend: Backend) -> Wanted:
        check_validation(self.getValidation())
        if not self.getModel():
            raise ValueError("Model parameter is required")
        return Wanted(
            features=self.getFeatureCols(),
            labels=self.getLabelCols() or (),
            weight=self.getSampleWeightCol(),
            validation=self.getValidation(),
            ranks=backend.num_processes(),
            files_per_rank=self.getPartitionsPerProcess(),
            seed=self.getRandomSeed(),
            compress=self.getCompressSparseCols(),
        )


class HorovodModel(Model, ModelParams, Saved):
    """Adds a column of predictions for each label to a DataFrame."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if given.get("label_columns"):
            self.setOutputCols([f"{name}__output" for name in given["label_columns"]])

    def transform(self, dataset: Any, params: Any = None) -> Any:
        """Return the DataFrame with a column more for each label, ``<label>__output`` or as ``setOutputCols`` says.

        One number for each row gets the label's type, rounded where that is an integer; several are a DenseVector,
        or a SparseVector where the label was one in each row.

        Raises
        ------
        ValueError
            A feature is missing, or a column of the output's name is there already.
        """
        return super().transform(dataset, params)

    def _transform(self, dataset: Any) -> Any:
        columns: Mapping[str, Column] = self.getMetadata() or {}
        return with_predictions(
            dataset,
            self._loader(columns),
            self.getFeatureColumns(),
            self.getOutputCols(),
            self.getLabelColumns(),
            columns,
        )

    def _loader(self, columns: Mapping[str, Column]) -> Callable[[], Forward]:
        """Return what makes ``forward`` on the driver and on executors; it can be pickled."""
        raise NotImplementedError


def _fresh(store: Store, begin: str) -> str:
    """Return the id of a run that there is not yet: a fit that names none never goes on from another's checkpoint."""
    now = int(time.time())
    while (name := f"{begin}_{now}") in _given or store.exists(store.get_run_path(name)):
        now += 1
    _given.add(name)
    return name
