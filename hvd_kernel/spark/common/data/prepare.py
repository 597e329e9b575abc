"""A DataFrame as parquet files in a store: split into rows to train and to validate on, once for each DataFrame.

What Spark knows of the columns and parquet does not is kept beside the files: a list of numbers may be a vector.
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

from hvd_kernel.spark.common.data.columns import VECTORS, Column, from_json, of_arrow, to_json
from hvd_kernel.spark.common.data.reader import Source, files, row_groups, source_of
from hvd_kernel.spark.common.store import Store

TOLD = "_hvd_columns.json"
_ROW_GROUP_BYTES = 16 << 20  # of a file that a few ranks read, each reads its own groups
_prepared: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Prepared]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Prepared:
    """Data sets in a store: number ``index`` of its paths, None: what the user has put there."""

    index: int | None
    train: Source
    validation: Source | None

    @property
    def columns(self) -> Mapping[str, Column]:
        """All columns by name."""
        return self.train.columns


@dataclass(frozen=True)
class Wanted:
    """Which rows and columns are wanted of a DataFrame. ``compress``: whether sparse vectors are stored as such."""

    features: Sequence[str] | None
    labels: Sequence[str]
    weight: str | None
    validation: Any
    ranks: int
    files_per_rank: int
    seed: int | None
    compress: bool = False


def prepare(frame: Any, store: Store, wanted: Wanted) -> Prepared:
    """Write a DataFrame's rows into the store; the same DataFrame is written once.

    Raises
    ------
    ValueError
        A column is missing, or no row is left to train or to validate on.
    """
    if wanted.ranks <= 0 or wanted.files_per_rank <= 0:
        raise ValueError(f"num_proc={wanted.ranks} and partitions_per_process={wanted.files_per_rank} must both be > 0")
    columns = _columns(frame, wanted)
    key = (store, tuple(columns), tuple(wanted.labels), repr(wanted.validation), wanted.seed, wanted.compress)
    known = _prepared.setdefault(frame, {})
    if key not in known or not store.exists(store.get_train_data_path(known[key].index)):
        known[key] = _written(frame, store, wanted, columns)
    return known[key]


def found(store: Store, wanted: Wanted, idx: int | None = None) -> Prepared:
    """Return the data sets that are in the store already.

    Raises
    ------
    ValueError
        There are none, or a column is missing.
    """
    train = _told(store, store.get_train_data_path(idx))
    path = store.get_val_data_path(idx)
    validation = _told(store, path) if wanted.validation and store.exists(path) else None
    if wanted.validation and validation is None:
        raise ValueError(f"validation={wanted.validation!r}, but there is no data to validate on in {path}.")
    return Prepared(idx, train, validation)


def _columns(frame: Any, wanted: Wanted) -> list[str]:
    """Return the columns that go into the store."""
    if not wanted.labels:
        raise ValueError("Parameter label_columns cannot be None or empty")
    split = wanted.validation if isinstance(wanted.validation, str) else None
    special = [*wanted.labels, *filter(None, [wanted.weight, split])]
    features = [name for name in frame.columns if name not in special] if wanted.features is None else wanted.features
    named = [("Label", wanted.labels), ("Feature", features)]
    named += [("Sample weight", [wanted.weight])] if wanted.weight else []
    named += [("Validation", [split])] if split else []
    for what, names in named:
        for name in names:
            if name not in frame.columns:
                raise ValueError(f"{what} column {name} does not exist in the DataFrame")
    return list(dict.fromkeys([*features, *wanted.labels, *filter(None, [wanted.weight])]))


def _written(frame: Any, store: Store, wanted: Wanted, columns: Sequence[str]) -> Prepared:
    train, validation = _split(frame, wanted)
    index = _free(store)
    kinds = _kinds(frame, wanted, columns)
    files_at_most = wanted.ranks * wanted.files_per_rank
    sources = []
    for part, path in ((train, store.get_train_data_path(index)), (validation, store.get_val_data_path(index))):
        if part is None:
            continue
        chosen = part.select([_storable(name, kinds[name], wanted).alias(name) for name in columns])
        if chosen_partitions(chosen) > files_at_most:
            chosen = chosen.coalesce(files_at_most)
        writer = chosen.write.mode("overwrite").option("parquet.block.size", _ROW_GROUP_BYTES)
        writer.parquet(store.spark_path(path))
        sources.append(_tell(store, path, kinds))
    if validation is not None and not sources[1].groups:
        raise ValueError(
            f"Validation DataFrame does not have any samples with validation param {wanted.validation}: choose a "
            "larger share, or set the column in some rows."
        )
    if not sources[0].groups:
        raise ValueError("The DataFrame has no rows to train on.")
    return Prepared(index, sources[0], sources[1] if validation is not None else None)


def chosen_partitions(frame: Any) -> int:
    """Return the number of partitions; 0 where a client of Spark Connect cannot know."""
    try:
        return int(frame.rdd.getNumPartitions())
    except Exception:  # noqa: BLE001 - each version of Spark Connect refuses by a class of its own
        return 0


def _split(frame: Any, wanted: Wanted) -> tuple[Any, Any]:
    """Return the rows to train on, and those to validate on or None."""
    by = wanted.validation
    if not by:
        return frame, None
    if isinstance(by, str):
        is_flag = frame.schema[by].dataType.typeName() == "boolean"
        chosen = sql.col(by) if is_flag else sql.col(by) > 0
        return frame.filter(~chosen), frame.filter(chosen)
    train, validation = frame.randomSplit([1.0 - by, by], seed=0 if wanted.seed is None else wanted.seed)
    return train, validation


def _free(store: Store) -> int:
    """Return a number that no data set of the store has, and take it."""
    index = 0
    while True:
        place = store.inside(store.get_train_data_path(index))
        if not store.fs.exists(place):
            store.fs.makedirs(place, exist_ok=True)
            return index
        index += 1


def _storable(name: str, kind: str, wanted: Wanted) -> Any:
    column = sql.col(f"`{name}`")
    if kind == "sparse" and wanted.compress:
        return sql.unwrap_udt(column)  # see vectors.py
    return vector_to_array(column) if kind in VECTORS else column


def _kinds(frame: Any, wanted: Wanted, columns: Sequence[str]) -> dict[str, str]:
    """Return what the columns hold. Spark has one type for all vectors: rows are looked at where it matters."""
    types = {field.name: field.dataType for field in frame.schema.fields if field.name in columns}
    vectors = [name for name, each in types.items() if isinstance(each, VectorUDT)]
    found = {name: "dense" if name in vectors else str(each.typeName()) for name, each in types.items()}
    asked = [name for name in vectors if wanted.compress or name in wanted.labels]
    if asked:
        which = [sql.max(sql.unwrap_udt(sql.col(f"`{name}`"))["type"]) for name in asked]
        found |= {name: "sparse" for name, each in zip(asked, frame.agg(*which).first(), strict=True) if each == 0}
    return found


def _tell(store: Store, path: str, kinds: Mapping[str, str]) -> Source:
    """Write down what the columns of a data set are."""
    groups = tuple(row_groups(store, path))
    columns = _seen(store, path, kinds) if groups else {}
    rows, size = sum(group.rows for group in groups), sum(group.size for group in groups)
    store.write_text(f"{path}/{TOLD}", to_json(columns.values(), rows, size))
    return Source(store, groups, columns)


def _told(store: Store, path: str) -> Source:
    """Return a data set of the store; of one that others have written, what its files say."""
    if not store.exists(path):
        raise ValueError(f"There is no data in {path}.")
    told = f"{path}/{TOLD}"
    columns = from_json(store.read(told)) if store.exists(told) else _seen(store, path, {})
    return source_of(store, path, columns)


def _seen(store: Store, path: str, kinds: Mapping[str, str]) -> dict[str, Column]:
    """Look at the first rows of the first file that has any."""
    for file in files(store, path):
        with store.fs.open(file, "rb") as opened:
            parquet = ParquetFile(opened)
            if parquet.metadata.num_rows:
                return of_arrow(parquet.read_row_group(0).slice(0, 100), kinds)
    raise ValueError(f"There are no rows in {path}.")
