"""Writes a DataFrame to parquet files in a store, once per DataFrame, split into rows for training and validation.

Column types that parquet cannot store, such as vectors, are described in a file next to the parquet files.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow.parquet import ParquetFile
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as sql

from hvd_kernel.spark.common.columns import VECTORS, Column, from_json, of_arrow, to_json
from hvd_kernel.spark.common.datamodule import Source, files, row_groups, source_of
from hvd_kernel.spark.common.store import Store

COLUMNS_FILE = "_hvd_columns.json"
_ROW_GROUP_BYTES = 16 << 20  # ranks that share a file read separate row groups
_prepared: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Prepared]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Prepared:
    """Data sets in a store at the paths with number ``index``; None: written by the user."""

    index: int | None
    train: Source
    validation: Source | None

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns by name."""
        return self.train.columns


@dataclass(frozen=True)
class Selection:
    """Rows and columns of a DataFrame to be written. ``compress``: store sparse vectors without zeros."""

    features: Sequence[str] | None
    labels: Sequence[str]
    weight: str | None
    validation: Any
    ranks: int
    files_per_rank: int
    seed: int | None
    compress: bool = False


def prepare(frame: Any, store: Store, selection: Selection) -> Prepared:
    """Write a DataFrame to the store, unless it has been written before.

    Raises
    ------
    ValueError
        A column is missing, or there are no rows for training or validation.
    """
    if selection.ranks <= 0 or selection.files_per_rank <= 0:
        raise ValueError(
            f"num_proc={selection.ranks} and partitions_per_process={selection.files_per_rank} must both be > 0"
        )
    columns = _columns(frame, selection)
    key = (
        store,
        tuple(columns),
        tuple(selection.labels),
        repr(selection.validation),
        selection.seed,
        selection.compress,
    )
    prepared = _prepared.setdefault(frame, {})
    if key not in prepared or not store.exists(store.get_train_data_path(prepared[key].index)):
        prepared[key] = _write(frame, store, selection, columns)
    return prepared[key]


def existing(store: Store, selection: Selection, idx: int | None = None) -> Prepared:
    """Return the data sets that are already in the store.

    Raises
    ------
    ValueError
        There are no data sets, or a column is missing.
    """
    train = _open(store, store.get_train_data_path(idx))
    path = store.get_val_data_path(idx)
    validation = _open(store, path) if selection.validation and store.exists(path) else None
    if selection.validation and validation is None:
        raise ValueError(f"validation={selection.validation!r}, but there is no data to validate on in {path}.")
    return Prepared(idx, train, validation)


def _columns(frame: Any, selection: Selection) -> list[str]:
    """Return the names of the columns to be written."""
    if not selection.labels:
        raise ValueError("Parameter label_columns cannot be None or empty")
    split = selection.validation if isinstance(selection.validation, str) else None
    special = [*selection.labels, *filter(None, [selection.weight, split])]
    features = (
        [name for name in frame.columns if name not in special] if selection.features is None else selection.features
    )
    named = [("Label", selection.labels), ("Feature", features)]
    named += [("Sample weight", [selection.weight])] if selection.weight else []
    named += [("Validation", [split])] if split else []
    for role, names in named:
        for name in names:
            if name not in frame.columns:
                raise ValueError(f"{role} column {name} does not exist in the DataFrame")
    return list(dict.fromkeys([*features, *selection.labels, *filter(None, [selection.weight])]))


def _write(frame: Any, store: Store, selection: Selection, columns: Sequence[str]) -> Prepared:
    train, validation = _split(frame, selection)
    index = _free(store)
    kinds = _kinds(frame, selection, columns)
    files_at_most = selection.ranks * selection.files_per_rank
    sources = []
    for part, path in ((train, store.get_train_data_path(index)), (validation, store.get_val_data_path(index))):
        if part is None:
            continue
        selected = part.select([_storable(name, kinds[name], selection).alias(name) for name in columns])
        if chosen_partitions(selected) > files_at_most:
            selected = selected.coalesce(files_at_most)
        writer = selected.write.mode("overwrite").option("parquet.block.size", _ROW_GROUP_BYTES)
        writer.parquet(store.spark_path(path))
        sources.append(_describe(store, path, kinds))
    if validation is not None and not sources[1].groups:
        raise ValueError(
            f"Validation DataFrame does not have any samples with validation param {selection.validation}: choose a "
            "larger share, or set the column in some rows."
        )
    if not sources[0].groups:
        raise ValueError("The DataFrame has no rows to train on.")
    return Prepared(index, sources[0], sources[1] if validation is not None else None)


def chosen_partitions(frame: Any) -> int:
    """Return the number of partitions; 0 if it is unknown, in a client of Spark Connect."""
    try:
        return int(frame.rdd.getNumPartitions())
    except Exception:  # noqa: BLE001 - the error class differs between versions of Spark Connect
        return 0


def _split(frame: Any, selection: Selection) -> tuple[Any, Any]:
    """Return the rows for training, and those for validation or None."""
    by = selection.validation
    if not by:
        return frame, None
    if isinstance(by, str):
        is_flag = frame.schema[by].dataType.typeName() == "boolean"
        chosen = sql.col(by) if is_flag else sql.col(by) > 0
        return frame.filter(~chosen), frame.filter(chosen)
    train, validation = frame.randomSplit([1.0 - by, by], seed=0 if selection.seed is None else selection.seed)
    return train, validation


def _free(store: Store) -> int:
    """Reserve an unused data set number of the store."""
    index = 0
    while True:
        path = store.inside(store.get_train_data_path(index))
        if not store.fs.exists(path):
            store.fs.makedirs(path, exist_ok=True)
            return index
        index += 1


def _storable(name: str, kind: str, selection: Selection) -> Any:
    column = sql.col(f"`{name}`")
    if kind == "sparse" and selection.compress:
        return sql.unwrap_udt(column)  # see columns.py
    return vector_to_array(column) if kind in VECTORS else column


def _kinds(frame: Any, selection: Selection, columns: Sequence[str]) -> dict[str, str]:
    """Return the kinds of the columns. Spark has one type for all vectors, so rows are inspected if it matters."""
    types = {field.name: field.dataType for field in frame.schema.fields if field.name in columns}
    vectors = [name for name, data_type in types.items() if isinstance(data_type, VectorUDT)]
    kinds = {name: "dense" if name in vectors else str(data_type.typeName()) for name, data_type in types.items()}
    inspected = [name for name in vectors if selection.compress or name in selection.labels]
    if inspected:
        maxima = frame.agg(*(sql.max(sql.unwrap_udt(sql.col(f"`{name}`"))["type"]) for name in inspected)).first()
        kinds |= {name: "sparse" for name, maximum in zip(inspected, maxima, strict=True) if maximum == 0}
    return kinds


def _describe(store: Store, path: str, kinds: Mapping[str, str]) -> Source:
    """Write the description of a data set's columns; return the data set."""
    groups = tuple(row_groups(store, path))
    columns = _inspect(store, path, kinds) if groups else {}
    rows, size = sum(group.rows for group in groups), sum(group.size for group in groups)
    store.write_text(f"{path}/{COLUMNS_FILE}", to_json(columns.values(), rows, size))
    return Source(store, groups, columns)


def _open(store: Store, path: str) -> Source:
    """Return a data set of the store; without a description, its columns are inspected."""
    if not store.exists(path):
        raise ValueError(f"There is no data in {path}.")
    file = f"{path}/{COLUMNS_FILE}"
    columns = from_json(store.read(file)) if store.exists(file) else _inspect(store, path, {})
    return source_of(store, path, columns)


def _inspect(store: Store, path: str, kinds: Mapping[str, str]) -> dict[str, Column]:
    """Return the columns, from the first rows of the first file that is not empty."""
    for file in files(store, path):
        with store.fs.open(file, "rb") as opened:
            parquet = ParquetFile(opened)
            if parquet.metadata.num_rows:
                return of_arrow(parquet.read_row_group(0).slice(0, 100), kinds)
    raise ValueError(f"There are no rows in {path}.")
