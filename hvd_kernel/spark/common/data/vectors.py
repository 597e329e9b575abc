"""Vectors as Spark itself stores them, dense ones and sparse ones in one column: read without Spark, by pyarrow.

A vector is a struct. Of a sparse one: type 0, its ``size``, the ``indices`` that are not zero, and their ``values``. Of
a dense one: type 1, and all its ``values``.
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
    """Tell whether a column of this type holds such vectors."""
    return pa.types.is_struct(kind) and {kind.field(at).name for at in range(kind.num_fields)} == _FIELDS


def all_sparse(column: pa.StructArray) -> bool:
    """Tell whether each of the vectors is a sparse one."""
    return bool(pc.all(pc.equal(_fields(column)["type"], _SPARSE), min_count=1).as_py())


def sizes(column: pa.StructArray) -> npt.NDArray[Any]:
    """Return how many numbers each of the vectors has, zeros too."""
    fields = _fields(column.drop_null())
    found = pc.if_else(_are_sparse(fields), fields["size"], pc.list_value_length(fields["values"]))
    return np.asarray(found)


def dense(column: pa.StructArray, name: str, length: int) -> npt.NDArray[np.float64]:
    """Return the vectors as an array of rows x length.

    Raises
    ------
    ValueError
        A vector is missing, or has another length.
    """
    if column.null_count or np.any(sizes(column) != length):
        raise ValueError(f"Column {name}: every row must hold {length} numbers, and one holds others or none.")
    fields = _fields(column)
    is_sparse = np.asarray(_are_sparse(fields))
    stored = np.asarray(pc.list_value_length(fields["values"]))
    place = np.empty(stored.sum(), np.int64)
    of_sparse = np.repeat(is_sparse, stored)
    place[of_sparse] = np.asarray(fields["indices"].flatten())  # a dense vector has none
    place[~of_sparse] = np.tile(np.arange(length), int((~is_sparse).sum()))
    made = np.zeros((len(column), length))
    made[np.repeat(np.arange(len(column)), stored), place] = np.asarray(fields["values"].flatten())
    return made


def as_lists(column: pa.StructArray, name: str, length: int) -> pa.FixedSizeListArray:
    """Return the vectors as lists; errors as of ``dense``."""
    return pa.FixedSizeListArray.from_arrays(pa.array(dense(column, name, length).reshape(-1)), length)


def _fields(column: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in column.type), column.flatten(), strict=True))


def _are_sparse(fields: dict[str, pa.Array]) -> pa.Array:
    return pc.equal(fields["type"], _SPARSE)
