"""Predictions as columns of a DataFrame: the model runs on batches, and only its inputs leave the JVM.

Terms.
  forward   function from arrays of the features to arrays of the outputs, rows x elements of an output
  scalar    an output of one number per row, which is converted to its label's type, and rounded for an integer type
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from hvd_kernel.spark.common.columns import INTEGERS, VECTORS, Column, values

Arrays = list[npt.NDArray[Any]]
Forward = Callable[[Arrays], Arrays]
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
