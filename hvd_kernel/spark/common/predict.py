"""Predictions as columns of a DataFrame: whole batches through the model, and nothing but its inputs leaves the JVM.

Terms.
  forward   arrays of the features in, arrays of the outputs out: rows x what each output has
  scalar    an output of one number for each row; it gets its label's type, rounded where that is an integer
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

from hvd_kernel.spark.common.data.columns import INTEGERS, VECTORS, Column, values

Arrays = list[npt.NDArray[Any]]
Forward = Callable[[Arrays], Arrays]
_KINDS = {"byte", "short", "integer", "long", "float", "double", "boolean"}
_PROBE_ROWS = 2  # a model may squeeze a batch of one


@dataclass(frozen=True)
class PredictionColumn:
    """One column of predictions: its name, its label's kind, and whether it is one number."""

    name: str
    kind: str
    scalar: bool


def with_predictions(  # noqa: PLR0917 - one caller, which has all of them
    frame: Any,
    load: Callable[[], Forward],
    features: Sequence[str],
    outputs: Sequence[str],
    labels: Sequence[str],
    columns: Mapping[str, Column],
) -> Any:
    """Return the DataFrame with a column more for each output.

    Parameters
    ----------
    load
        Makes ``forward``; called once on the driver, and once for each partition.
    features, outputs, labels
        Names of columns: of the model's inputs, of its outputs, and of the labels that the outputs stand for.
    columns
        What the labels and features hold.

    Raises
    ------
    ValueError
        A column is missing, or one of the outputs is there already.
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
    told = _told(load(), shapes, outputs, [columns[name].kind for name in labels])
    result = StructType([StructField(f"o{at}", _between(each)) for at, each in enumerate(told)])
    run = _udf(_Predict(load, list(zip(features, shapes, strict=True)), told), result)
    marked = frame.withColumn(_HELD, run(sql.struct(*(_input(frame, name) for name in features))))
    for at, each in enumerate(told):
        marked = marked.withColumn(each.name, _final(sql.col(f"{_HELD}.o{at}"), each))
    return marked.drop(_HELD)


_HELD = "_hvd_predictions"


class _Predict:
    """What executors run: batches of Arrow in and out."""

    def __init__(self, load: Callable[[], Forward], features: list[tuple[str, tuple[int, ...]]], outputs: Any) -> None:
        self._load, self._features, self._outputs = load, features, outputs

    def __call__(self, batches: Iterator[pa.StructArray]) -> Iterator[pa.StructArray]:
        forward = self._load()
        for batch in batches:
            fields = batch.flatten()
            given = [values(array, *feature) for array, feature in zip(fields, self._features, strict=True)]
            found = forward(given) if len(batch) else [np.zeros((0, 1))] * len(self._outputs)
            made = [_packed(array, each) for array, each in zip(found, self._outputs, strict=False)]
            yield pa.StructArray.from_arrays(made, names=[f"o{at}" for at in range(len(made))])


def _told(forward: Forward, shapes: Any, outputs: Sequence[str], kinds: Sequence[str]) -> list[PredictionColumn]:
    """Run the model on zeros, and look at what it gives."""
    found = forward([np.zeros((_PROBE_ROWS, *shape)) for shape in shapes])
    if len(found) < len(outputs):
        raise ValueError(f"The model gives {len(found)} output(s) for {len(outputs)} label(s): {', '.join(outputs)}.")
    sizes = [array.size // _PROBE_ROWS for array in found]
    return [
        PredictionColumn(name, kind, scalar=size == 1 and kind not in VECTORS)
        for name, kind, size in zip(outputs, kinds, sizes, strict=False)
    ]


def _between(output: PredictionColumn) -> Any:
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
    """Return the column of SparseVectors: row by row, for the JVM has no function for that."""

    def made(values: Sequence[float]) -> SparseVector:
        return SparseVector(len(values), [(at, value) for at, value in enumerate(values) if value])

    return sql.udf(made, VectorUDT())(column)


def _input(frame: Any, name: str) -> Any:
    column = sql.col(f"`{name}`")
    is_vector = isinstance(frame.schema[name].dataType, VectorUDT)
    return (vector_to_array(column) if is_vector else column).alias(name)


def _udf(predict: _Predict, result: StructType) -> Any:
    """Return the function of columns: on Arrow's arrays (Spark 4.1 and newer), else on pandas'."""
    arrow_udf = getattr(sql, "arrow_udf", None)
    if arrow_udf is not None:

        def on_arrow(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return predict(batches)

        on_arrow.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        return arrow_udf(on_arrow, result)
    import pandas as pd  # noqa: PLC0415 - pyspark's own choice of pandas, where it is needed

    def on_pandas(frames: Iterator[Any]) -> Iterator[Any]:
        structs = (pa.Table.from_pandas(frame, preserve_index=False).to_struct_array() for frame in frames)
        for made in predict(each.combine_chunks() for each in structs):
            yield pa.Table.from_struct_array(made).to_pandas()

    on_pandas.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}
    return sql.pandas_udf(on_pandas, result)


__all__ = ["Forward", "with_predictions"]
