"""Base classes of estimators and models: stages of pyspark.ml that train on ranks and predict in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator, Model

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.spark.common.backend import Backend, SparkBackend
from hvd_kernel.spark.common.columns import Column
from hvd_kernel.spark.common.job import TrainingJob
from hvd_kernel.spark.common.params import EstimatorParams, ModelParams, check_validation
from hvd_kernel.spark.common.predict import Forward, with_predictions
from hvd_kernel.spark.common.prepare import Prepared, Selection, existing, prepare
from hvd_kernel.spark.common.saving import Saved
from hvd_kernel.spark.common.store import Store

_used_run_ids: set[str] = set()


class HorovodEstimator(Estimator[Any], EstimatorParams, Saved):
    """Trains a model on the rows of a DataFrame."""

    _run_prefix = "run"

    def fit(self, df: Any, params: Any = None) -> Any:
        """Train on a DataFrame.

        The rows are first written to the store, once per DataFrame. ``params``: a param map that overrides, or a list.

        Raises
        ------
        ValueError
            A param is missing or does not match the DataFrame; the message names it.
        RankFailed
            A rank raised; ``__cause__`` is its exception.
        """
        return super().fit(df, params)

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on existing parquet files in the store, at ``store.get_train_data_path(dataset_idx)``."""
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        backend = self._backend()
        return self._train(backend, existing(self._store(), self._selection(backend), dataset_idx))

    def _fit(self, dataset: Any) -> Any:
        backend = self._backend()
        selection = self._selection(backend)
        self._check_before()
        return self._train(backend, prepare(dataset, self._store(), selection))

    def _train(self, backend: Backend, prepared: Prepared) -> Any:
        self._check_params(prepared.columns)
        job = self._job(prepared)
        results = backend.run(self._function(), args=(job, *self._arguments(job)), env=self._environment())
        return self._model(job, results)

    # Implemented for each framework.

    def _check_before(self) -> None:
        """Raise ValueError for invalid params before data are written."""

    def _function(self) -> Callable[..., Any]:
        """Return the function that each rank calls with the job and ``_arguments``."""
        raise NotImplementedError

    def _arguments(self, job: TrainingJob) -> tuple[Any, ...]:
        raise NotImplementedError

    def _model(self, job: TrainingJob, results: Sequence[Any]) -> Any:
        """Return the model, from the values that the ranks returned."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        """Return environment variables of the ranks."""
        return {}

    # Common to all frameworks.

    def _job(self, prepared: Prepared) -> TrainingJob:
        labels, weight = self.getLabelCols(), self.getSampleWeightCol()
        others = [name for name in prepared.columns if name not in {*labels, weight}]
        run_id = self.getRunId() or _new_run_id(self._store(), self._run_prefix)
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

    def _selection(self, backend: Backend) -> Selection:
        check_validation(self.getValidation())
        if not self.getModel():
            raise ValueError("Model parameter is required")
        return Selection(
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

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if params.get("label_columns"):
            self.setOutputCols([f"{name}__output" for name in params["label_columns"]])

    def transform(self, dataset: Any, params: Any = None) -> Any:
        """Return the DataFrame with an additional column per label, ``<label>__output`` or set by ``setOutputCols``.

        An output of one number per row is converted to the label's type, and rounded for an integer type. An output of
        several numbers is a DenseVector, or a SparseVector if all labels were sparse.

        Raises
        ------
        ValueError
            A feature is missing, or the output column already exists.
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
        """Return a picklable function that creates ``forward`` on the driver and on executors."""
        raise NotImplementedError


def _new_run_id(store: Store, prefix: str) -> str:
    """Return an unused run id: without run_id, a fit never continues from the checkpoint of another run."""
    now = int(time.time())
    while (name := f"{prefix}_{now}") in _used_run_ids or store.exists(store.get_run_path(name)):
        now += 1
    _used_run_ids.add(name)
    return name
