"""Base classes of estimators and models: stages of pyspark.ml that train on ranks and predict in batches.

Predictions are columns of a DataFrame: the model runs on batches, and only its inputs leave the JVM.

Terms.
  forward   function from arrays of the features to arrays of the outputs, rows x elements of an output
  scalar    an output of one number per row, which is converted to its label's type, and rounded for an integer type
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.spark.common.backend import Backend, SparkBackend
from hvd_kernel.spark.common.columns import INTEGERS, VECTORS, Column, values
from hvd_kernel.spark.common.job import TrainingJob
from hvd_kernel.spark.common.params import EstimatorParams, ModelParams, Saved, check_validation
from hvd_kernel.spark.common.prepare import Prepared, Selection, existing, prepare
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


Arrays = list[npt.NDArray[Any]]
Forward = Callable[[Arrays], Arrays]
# Predictions


_KINDS = {"byte", "short", "integer", "long", "float", "double", "boolean"}
_PROBE_ROWS = 2  # a model may squeeze a batch of one row


@dataclass(frozen=True)
class PredictionColumn:
    """A column of predictions: its name, its label's kind, and whether it is a scalar."""

    name: str
    kind: str
    scalar: bool


def with_predictions(  # noqa: PLR0917 - it has a single caller
    frame: Any,
    load: Callable[[], Forward],
    features: Sequence[str],
    outputs: Sequence[str],
    labels: Sequence[str],
    columns: Mapping[str, Column],
) -> Any:
    """Return the DataFrame with an additional column for each output.

    Parameters
    ----------
    load
        Function that creates ``forward``, called once on the driver, and once per partition.
    features, outputs, labels
        Names of columns: inputs of the model, its outputs, and the corresponding labels.
    columns
        Kinds and shapes of the labels and features.

    Raises
    ------
    ValueError
        A column is missing, or an output column already exists.
    """
    for name in outputs:
        if name in frame.columns:
            raise ValueError(f"Column {name} exists already in the DataFrame: name others by setOutputCols.")
    for name in features:
        if name not in frame.columns:
            raise ValueError(f"Feature column {name} does not exist in the DataFrame")
    if not columns.keys() >= {*features, *labels}:
        raise ValueError("The model does not know its columns: it needs the _metadata of the fit that has made it.")
    shapes = [columns[name].shape or () for name in features]
    predictions = _probe(load(), shapes, outputs, [columns[name].kind for name in labels])
    result = StructType([StructField(f"o{i}", _intermediate(column)) for i, column in enumerate(predictions)])
    run = _udf(_Predict(load, list(zip(features, shapes, strict=True)), predictions), result)
    extended = frame.withColumn(_TEMPORARY, run(sql.struct(*(_input(frame, name) for name in features))))
    for i, column in enumerate(predictions):
        extended = extended.withColumn(column.name, _final(sql.col(f"{_TEMPORARY}.o{i}"), column))
    return extended.drop(_TEMPORARY)


_TEMPORARY = "_hvd_predictions"


class _Predict:
    """Function of executors, from batches of Arrow to batches of Arrow."""

    def __init__(self, load: Callable[[], Forward], features: list[tuple[str, tuple[int, ...]]], outputs: Any) -> None:
        self._load, self._features, self._outputs = load, features, outputs

    def __call__(self, batches: Iterator[pa.StructArray]) -> Iterator[pa.StructArray]:
        forward = self._load()
        for batch in batches:
            fields = batch.flatten()
            inputs = [values(array, *feature) for array, feature in zip(fields, self._features, strict=True)]
            arrays = forward(inputs) if len(batch) else [np.zeros((0, 1))] * len(self._outputs)
            packed = [_packed(array, column) for array, column in zip(arrays, self._outputs, strict=False)]
            yield pa.StructArray.from_arrays(packed, names=[f"o{i}" for i in range(len(packed))])


def _probe(forward: Forward, shapes: Any, outputs: Sequence[str], kinds: Sequence[str]) -> list[PredictionColumn]:
    """Run the model on zeros to determine the sizes of its outputs."""
    arrays = forward([np.zeros((_PROBE_ROWS, *shape)) for shape in shapes])
    if len(arrays) < len(outputs):
        raise ValueError(f"The model gives {len(arrays)} output(s) for {len(outputs)} label(s): {', '.join(outputs)}.")
    sizes = [array.size // _PROBE_ROWS for array in arrays]
    return [
        PredictionColumn(name, kind, scalar=size == 1 and kind not in VECTORS)
        for name, kind, size in zip(outputs, kinds, sizes, strict=False)
    ]


def _intermediate(output: PredictionColumn) -> Any:
    return DoubleType() if output.scalar else ArrayType(DoubleType(), containsNull=False)


def _packed(array: npt.NDArray[Any], output: PredictionColumn) -> pa.Array:
    flat = np.ascontiguousarray(array, dtype=np.float64).reshape(-1)
    if output.scalar:
        return pa.array(flat)
    width = len(flat) // len(array) if len(array) else 1
    offsets = np.arange(len(array) + 1, dtype=np.int32) * np.int32(width)
    field = pa.field("element", pa.float64(), nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=pa.list_(field))


def _final(column: Any, output: PredictionColumn) -> Any:
    if not output.scalar:
        return _sparse(column) if output.kind == "sparse" else array_to_vector(column)
    if output.kind in INTEGERS:
        return sql.rint(column).cast(output.kind)
    return column.cast(output.kind if output.kind in _KINDS else "double")


def _sparse(column: Any) -> Any:
    """Return a column of SparseVectors, converted row by row: the JVM has no function for it."""

    def convert(values: Sequence[float]) -> SparseVector:
        return SparseVector(len(values), [(i, value) for i, value in enumerate(values) if value])

    return sql.udf(convert, VectorUDT())(column)


def _input(frame: Any, name: str) -> Any:
    column = sql.col(f"`{name}`")
    is_vector = isinstance(frame.schema[name].dataType, VectorUDT)
    return (vector_to_array(column) if is_vector else column).alias(name)


def _udf(predict: _Predict, result: StructType) -> Any:
    """Return the user-defined function, on Arrow arrays (Spark 4.1 and newer) or pandas DataFrames."""
    arrow_udf = getattr(sql, "arrow_udf", None)
    if arrow_udf is not None:

        def on_arrow(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return predict(batches)

        on_arrow.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        return arrow_udf(on_arrow, result)
    import pandas as pd  # noqa: PLC0415 - only this branch needs it

    def on_pandas(frames: Iterator[Any]) -> Iterator[Any]:
        structs = (pa.Table.from_pandas(frame, preserve_index=False).to_struct_array() for frame in frames)
        for batch in predict(struct.combine_chunks() for struct in structs):
            yield pa.Table.from_struct_array(batch).to_pandas()

    on_pandas.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}
    return sql.pandas_udf(on_pandas, result)


__all__ = ["Forward", "with_predictions"]
