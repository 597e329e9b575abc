"""Reads columns of dense and sparse vectors in Spark's storage format with pyarrow, without Spark.

A vector is a struct. A sparse vector has type 0, its ``size``, the ``indices`` of elements that are not zero, and their
``values``. A dense vector has type 1, and all ``values``.
"""

from __future__ import annotations

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
        raise ValueError(f"Column {name}: every row must hold {length} numbers, and one holds others or none.")
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
