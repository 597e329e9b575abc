"""Params of estimators and of their models: Horovod's names, defaults, setters and getters.

Each row of a table is a param; ``declare`` adds the ``Param`` of pyspark.ml, ``setName`` and ``getName`` to a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasOutputCols

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - checks PySpark before the imports below
from hvd_kernel.spark.common.columns import Column

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
