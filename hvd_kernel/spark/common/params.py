"""Params of estimators and of their models: Horovod's names, defaults, setters and getters; saving of stages.

Each row of a table is a param; ``declare`` adds the ``Param`` of pyspark.ml, ``setName`` and ``getName`` to a class.

Estimators and models are saved as stages of pyspark.ml with their backend and store, also in a Pipeline:

    PATH/metadata   JSON: params that JSON can store; ``store`` and ``backend`` as constructor arguments
    PATH/objects    parquet: a pickle of all other params, in parts

Loading a stage runs code, as models are pickled: load only trusted files, as with ``torch.load``.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import cloudpickle
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasOutputCols
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.spark.common.columns import Column, from_json, to_json

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class ParamRow:
    """Documentation and default of a param; ``word`` is its name in setters and getters, if it is irregular."""

    doc: str
    default: Any = None
    convert: Callable[[Any], Any] | None = None
    word: str = ""


_int, _bool, _text = TypeConverters.toInt, TypeConverters.toBoolean, TypeConverters.toString
_texts, _floats = TypeConverters.toListString, TypeConverters.toListFloat

ESTIMATOR: Mapping[str, ParamRow] = {
    "num_proc": ParamRow("number of ranks; None: spark.default.parallelism"),
    "model": ParamRow("the model to train"),
    "backend": ParamRow("backend that runs the training function (common.backend); excludes num_proc"),
    "store": ParamRow("store of data and runs (common.store)"),
    "optimizer": ParamRow("the optimizer; its learning rate is multiplied by the number of ranks"),
    "loss": ParamRow("the loss, or one for each label"),
    "loss_weights": ParamRow("the weight of each label's loss; None: equal ones", None, _floats),
    "sample_weight_col": ParamRow("column with the weight of each row", None, _text),
    "metrics": ParamRow("metrics in addition to the loss", []),
    "feature_cols": ParamRow("input columns of the model, in this order; None: all other columns", None, _texts),
    "label_cols": ParamRow("columns with the expected outputs of the model", None, _texts),
    "continuous_cols": ParamRow("accepted: columns for NVTabular", None, _texts),
    "categorical_cols": ParamRow("accepted: columns for NVTabular", None, _texts),
    "validation": ParamRow("share of the rows in [0, 1), or a column that is 0 or false in rows to train on"),
    "callbacks": ParamRow("callbacks of the training", []),
    "batch_size": ParamRow("number of rows in a batch, on each rank", 32, _int),
    "val_batch_size": ParamRow("number of rows in a batch for validation; None: batch_size", None, _int),
    "epochs": ParamRow("number of epochs", 1, _int),
    "train_steps_per_epoch": ParamRow("number of batches in an epoch, on each rank; None: all rows", None, _int),
    "validation_steps_per_epoch": ParamRow(
        "number of batches in a validation, on each rank; None: all rows", None, _int
    ),
    "shuffle": ParamRow("whether rows are shuffled", True, _bool),
    "shuffle_buffer_size": ParamRow(
        "(Deprecated) number of rows that are shuffled together; 0: no shuffling", None, _int, "ShufflingBufferSize"
    ),
    "partitions_per_process": ParamRow("maximum number of parquet files for each rank", 10, _int),
    "run_id": ParamRow("name of the run; an existing run continues from its checkpoint", None, _text),
    "transformation_fn": ParamRow("function that receives rows as a pandas DataFrame and returns the rows to use"),
    "transformation_edit_fields": ParamRow("accepted: Petastorm's fields of what transformation_fn returns"),
    "transformation_removed_fields": ParamRow("columns that transformation_fn removes"),
    "train_reader_num_workers": ParamRow("accepted: one thread reads ahead", 2, None, "TrainReaderNumWorker"),
    "val_reader_num_workers": ParamRow("accepted: one thread reads ahead", 2, None, "ValReaderNumWorker"),
    "reader_pool_type": ParamRow("accepted: thread, process or dummy", "thread"),
    "label_shapes": ParamRow("shape of each label"),
    "inmemory_cache_all": ParamRow("keep each rank's rows in memory", False, _bool, "InMemoryCacheAll"),
    "gradient_compression": ParamRow("compression of the gradients, hvd.Compression.fp16"),
    "compress_sparse_cols": ParamRow("store SparseVectors, and keep them in memory, without their zeros", False, _bool),
    "backward_passes_per_step": ParamRow(
        "number of batches whose gradients are accumulated before a reduction", 1, _int
    ),
    "random_seed": ParamRow("seed of the initial weights, of the order of rows, and of the split", None, _int),
    "use_gpu": ParamRow("whether to use a GPU if one is available", True, _bool),
    "mp_start_method": ParamRow("accepted: no processes are started to read", None, _text),
    "verbose": ParamRow("0: no progress output", 1, _int),
    "best_checkpoint": ParamRow(
        "whether to return the model of the epoch with the lowest loss instead of the last epoch", False, _bool
    ),
}
MODEL: Mapping[str, ParamRow] = {
    "history": ParamRow("loss and metrics of each epoch"),
    "model": ParamRow("the trained model"),
    "feature_columns": ParamRow("input columns of the model"),
    "label_columns": ParamRow("label columns, one for each output of the model", None, None, "LabelColumns"),
    "run_id": ParamRow("the run that trained the model", None, _text),
    "_metadata": ParamRow("the columns of the training data, by name"),
}


def camel(name: str) -> str:
    """Return the name of a param in methods: BatchSize for batch_size."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def declare(table: Mapping[str, ParamRow]) -> Callable[[_Class], _Class]:
    """Add the table's params to a class, with their defaults, setters and getters."""

    def add(cls: _Class) -> _Class:
        defaults = {name: row.default for name, row in table.items()}
        vars_of: dict[str, Any] = {"_defaults": {**getattr(cls, "_defaults", {}), **defaults}}
        for name, row in table.items():
            vars_of[name] = Param(Params._dummy(), name, row.doc, row.convert)  # noqa: SLF001 - as in pyspark.ml
            word = row.word or camel(name)
            for method, made in ((f"set{word}", _setter(name, row)), (f"get{word}", _getter(name, row))):
                if method not in vars(cls):
                    made.__name__ = method
                    made.__qualname__ = f"{cls.__name__}.{method}"
                    vars_of[method] = made
        for name, value in vars_of.items():
            setattr(cls, name, value)
        return cls

    return add


def _setter(name: str, row: ParamRow) -> Callable[..., Any]:
    def set_(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    set_.__doc__ = f"Set {name}: {row.doc}."
    return set_


def _getter(name: str, row: ParamRow) -> Callable[..., Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(getattr(self, name))

    get.__doc__ = f"Return {name}: {row.doc}."
    return get


class _Declared(Params):
    """Params declared by tables, set by keyword arguments; None stands for the default."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, **params: Any) -> None:
        super().__init__()
        unknown = sorted(set(params) - set(self._defaults))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no param {', '.join(unknown)}; it has {', '.join(sorted(self._defaults))}."
            )
        self._setDefault(**{name: _copy(value) for name, value in self._defaults.items()})
        self._set(**{name: value for name, value in params.items() if value is not None})

    def setParams(self, **params: Any) -> Any:  # noqa: N802 - pyspark.ml's name
        """Set params by name."""
        return self._set(**params)


@declare(ESTIMATOR)
class EstimatorParams(_Declared):
    """Params of every estimator."""

    def _check_params(self, columns: Mapping[str, Column]) -> None:
        """Check params before the ranks are started.

        Raises
        ------
        ValueError
            The model or a column is missing.
        """
        get: Any = self
        if not get.getModel():
            raise ValueError("Model parameter is required")
        check_validation(get.getValidation())
        for role, names in (("Feature", get.getFeatureCols()), ("Label", get.getLabelCols())):
            missing = [name for name in names or () if name not in columns]
            if missing:
                raise ValueError(f"{role} columns {missing} not found in training DataFrame metadata")


@declare(MODEL)
class ModelParams(_Declared, HasOutputCols):
    """Params of every trained model."""

    def setOutputCols(self, value: list[str]) -> Any:  # noqa: N802 - pyspark.ml's name
        """Set the names of the output columns; the default is ``<label>__output``."""
        return self._set(outputCols=value)

    def setLabelColoumns(self, value: list[str]) -> Any:  # noqa: N802 - Horovod's spelling
        """Set the label columns."""
        return self._set(label_columns=value)


def check_validation(validation: Any) -> None:
    """Check the param that selects rows for validation.

    Raises
    ------
    ValueError
        The param is neither a share nor the name of a column.
    """
    if not validation and validation != 0:
        return
    if isinstance(validation, str):
        return
    if isinstance(validation, bool) or not isinstance(validation, int | float):
        raise ValueError(  # noqa: TRY004 - Horovod's error class
            f'Param validation must be of type "float" or "str", found: {type(validation).__name__}'
        )
    if not 0 <= validation < 1:
        raise ValueError(f"Validation split {validation} must be in the range: [0, 1)")


def _copy(value: Any) -> Any:
    """Return a copy of a mutable default."""
    return value.copy() if isinstance(value, list | dict) else value


# Saving


_PART = 64 << 20
_DESCRIBED = ("store", "backend")
_COLUMNS = "_metadata"


class StageWriter(MLWriter):
    """Writes a stage."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - pyspark.ml's name
        """Write the stage to a new path."""
        texts, objects = {}, {}
        for param, value in self._stage.extractParamMap().items():
            if self._stage.isSet(param):
                text = _as_json(param.name, value)
                if text is None:
                    objects[param.name] = value
                else:
                    texts[param.name] = text
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sc, paramMap=texts)
        data = self._stage.packed(objects)
        parts = [(offset, bytearray(data[offset : offset + _PART])) for offset in range(0, max(len(data), 1), _PART)]
        frame = self.sparkSession.createDataFrame(parts, "at long, part binary")
        frame.coalesce(1).write.parquet(f"{path}/objects")


class StageReader(MLReader[Any]):
    """Reads a stage of a class."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Return the stage; code of its params is run on loading."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        rows = self.sparkSession.read.parquet(f"{path}/objects").orderBy("at").collect()
        stage = self._cls()
        stage._resetUid(metadata["uid"])  # noqa: SLF001 - as in pyspark.ml's reader
        params = {name: _from_json(name, value) for name, value in metadata["paramMap"].items()}
        params |= self._cls.unpacked(b"".join(bytes(row["part"]) for row in rows), params)
        stage._set(**params)  # noqa: SLF001 - as above
        return stage


class Saved(MLWritable, MLReadable[Any]):
    """A stage with ``stage.write().overwrite().save(path)`` and ``Class.load(path)``."""

    def write(self) -> StageWriter:
        """Return a writer of this stage."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Return a reader of stages of this class."""
        return StageReader(cls)

    def packed(self, objects: dict[str, Any]) -> bytes:
        """Pickle params that JSON cannot store together, so that an optimizer keeps the parameters of its model."""
        data: bytes = cloudpickle.dumps(objects)
        return data

    @classmethod
    def unpacked(cls, data: bytes, params: dict[str, Any]) -> dict[str, Any]:
        """Return the objects of ``packed``; ``params`` are those stored as JSON."""
        del params
        objects: dict[str, Any] = pickle.load(io.BytesIO(data))  # noqa: S301 - see the docstring of this module
        return objects

    @classmethod
    def load(cls, path: str) -> Self:
        """Load a stage from a path."""
        loaded: Self = cls.read().load(path)
        return loaded


def _as_json(name: str, value: Any) -> Any:
    """Return a param for JSON, or None if JSON cannot restore it exactly."""
    if name in _DESCRIBED and hasattr(value, "description"):
        kind = type(value)
        return _plain({"class": f"{kind.__module__}.{kind.__qualname__}", "arguments": value.description()})
    if name == _COLUMNS and isinstance(value, dict):
        return to_json(value.values(), 0, 0)
    return _plain(value)


def _from_json(name: str, value: Any) -> Any:
    if name in _DESCRIBED and isinstance(value, dict):
        module, _, kind = value["class"].rpartition(".")
        return getattr(importlib.import_module(module), kind)(**value["arguments"])
    if name == _COLUMNS:
        columns: dict[str, Column] = from_json(value)
        return columns
    return value


def _plain(value: Any) -> Any:
    """Return the value if JSON restores it exactly, or None."""
    try:
        return value if value is not None and json.loads(json.dumps(value)) == value and _exact(value) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _exact(value: Any) -> bool:
    """Return whether a value has only JSON types: no tuple, and no tensor that equals a number."""
    if isinstance(value, dict):
        return all(type(key) is str and _exact(element) for key, element in value.items())
    if isinstance(value, list):
        return all(map(_exact, value))
    return value is None or type(value) in {str, int, float, bool}
