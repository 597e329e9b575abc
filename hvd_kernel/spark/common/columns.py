"""Types and values of columns, and vectors in Spark's storage format. Does not import Spark, as ranks use it.

A vector is a struct. A sparse vector has type 0, its ``size``, the ``indices`` of elements that are not zero, and their
``values``. A dense vector has type 1, and all ``values``.

Terms.
  kind   type of a column: Spark's name of a scalar type ("double", "long"), "array", "dense" or "sparse" (vectors;
         sparse if all rows are)
  shape  shape of a row's value: () for a scalar, (n,) for a list of n numbers
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FIELDS = {"type", "size", "indices", "values"}
_SPARSE = 0


def holds_vectors(kind: pa.DataType) -> bool:
    """Return whether a type is that of vectors."""
    return pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == _FIELDS


def all_sparse(column: pa.StructArray) -> bool:
    """Return whether all vectors are sparse."""
    return bool(pc.all(pc.equal(_fields(column)["type"], _SPARSE), min_count=1).as_py())


def sizes(column: pa.StructArray) -> npt.NDArray[Any]:
    """Return the length of each vector, including zeros."""
    fields = _fields(column.drop_null())
    lengths = pc.if_else(_are_sparse(fields), fields["size"], pc.list_value_length(fields["values"]))
    return np.asarray(lengths)


def dense(column: pa.StructArray, name: str, length: int) -> npt.NDArray[np.float64]:
    """Return the vectors as an array of rows x length.

    Raises
    ------
    ValueError
        A vector is missing, or has a different length.
    """
    if column.null_count or np.any(sizes(column) != length):
        raise ValueError(f"Column {name}: every row must hold {length} numbers, but one holds more, fewer or none.")
    fields = _fields(column)
    is_sparse = np.asarray(_are_sparse(fields))
    stored = np.asarray(pc.list_value_length(fields["values"]))
    positions = np.empty(stored.sum(), np.int64)
    of_sparse = np.repeat(is_sparse, stored)
    positions[of_sparse] = np.asarray(fields["indices"].flatten())  # empty for a dense vector
    positions[~of_sparse] = np.tile(np.arange(length), int((~is_sparse).sum()))
    rows = np.zeros((len(column), length))
    rows[np.repeat(np.arange(len(column)), stored), positions] = np.asarray(fields["values"].flatten())
    return rows


def as_lists(column: pa.StructArray, name: str, length: int) -> pa.FixedSizeListArray:
    """Return the vectors as lists; raises the errors of ``dense``."""
    return pa.FixedSizeListArray.from_arrays(pa.array(dense(column, name, length).reshape(-1)), length)


def _fields(column: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in column.type), column.flatten(), strict=True))


def _are_sparse(fields: dict[str, pa.Array]) -> pa.Array:
    return pc.equal(fields["type"], _SPARSE)


INTEGERS = frozenset({"byte", "short", "integer", "long"})
VECTORS = frozenset({"dense", "sparse"})
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


@dataclass(frozen=True)
class Column:
    """A column of a data set. ``shape`` is None if it differs between rows, or the values are not numbers."""

    name: str
    kind: str
    shape: tuple[int, ...] | None


def to_json(columns: Iterable[Column], rows: int, size: int) -> str:
    """Return the description stored with a data set: its columns, number of rows and size in bytes."""
    return json.dumps({"version": 1, "rows": rows, "bytes": size, "columns": [asdict(column) for column in columns]})


def from_json(text: bytes | str) -> dict[str, Column]:
    """Return the columns by name."""
    return {
        row["name"]: Column(row["name"], row["kind"], None if row["shape"] is None else tuple(row["shape"]))
        for row in json.loads(text)["columns"]
    }


def of_arrow(table: pa.Table, kinds: Mapping[str, str]) -> dict[str, Column]:
    """Return the columns of a table by name, with the shapes of its rows.

    Parameters
    ----------
    table
        Rows of the data set, at least one.
    kinds
        Kinds known from Spark; those of other columns are derived from Arrow's types.
    """
    columns = {}
    for name in table.column_names:
        column = table[name]
        columns[name] = Column(name, kinds.get(name) or _kind(column), _shape(column))
    return columns


def values(column: pa.ChunkedArray | pa.Array, name: str, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """Return a column as an array of rows x shape; values that are not numbers remain objects.

    Raises
    ------
    ValueError
        A value is missing, or a list has a different length.
    """
    array = whole(column)
    if any(is_list(array.type) for is_list in _LISTS) and shape is not None:
        flat = array.flatten()
        if array.null_count or flat.null_count or len(flat) != len(array) * shape[0] or not _even(array, shape[0]):
            raise ValueError(
                f"Column {name}: every row must hold {shape[0]} numbers, but one holds more, fewer or none."
            )
        return _numbers(flat).reshape(len(array), *shape)
    if array.null_count:
        raise ValueError(f"Column {name}: a row has no value; fill or drop it first (DataFrame.fillna, dropna).")
    return _numbers(array)


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as a single array."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _even(array: pa.Array, length: int) -> bool:
    """Return whether all lists have this length."""
    if pa.types.is_fixed_size_list(array.type):
        return True
    return bool(np.all(np.diff(array.offsets.to_numpy()) == length))


def _shape(column: pa.ChunkedArray) -> tuple[int, ...] | None:
    kind = column.type
    if any(is_list(kind) for is_list in _LISTS):
        number = pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
        lengths = {len(row) for row in column.slice(0, 100).to_pylist() if row is not None}
        return (lengths.pop(),) if number and len(lengths) == 1 else None
    if holds_vectors(kind):
        lengths = set(sizes(whole(column.slice(0, 100))).tolist())
        return (lengths.pop(),) if len(lengths) == 1 else None
    number_checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return () if any(is_number(kind) for is_number in number_checks) else None


def _kind(column: pa.ChunkedArray) -> str:
    kind = column.type
    if holds_vectors(kind):
        return "sparse" if all_sparse(whole(column)) else "dense"
    names = {
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.bool_(): "boolean",
    }
    if any(is_list(kind) for is_list in _LISTS):
        return "array"
    return names.get(kind, str(kind))
