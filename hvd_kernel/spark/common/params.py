"""Params of estimators and of the models that they give: Horovod's names, defaults, setters and getters.

Each row of a table is one param; ``declare`` makes of it a ``Param`` of pyspark.ml, ``setName`` and ``getName``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasOutputCols

import hvd_kernel.spark.installed  # isort: split # noqa: F401 - the others need what it looks for
from hvd_kernel.spark.common.data.columns import Column

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class ParamRow:
    """What a param is for, its default, and how ``set`` and ``get`` name it where its own name does not tell."""

    doc: str
    default: Any = None
    convert: Callable[[Any], Any] | None = None
    word: str = ""


_int, _bool, _text = TypeConverters.toInt, TypeConverters.toBoolean, TypeConverters.toString
_texts, _floats = TypeConverters.toListString, TypeConverters.toListFloat

ESTIMATOR: Mapping[str, ParamRow] = {
    "num_proc": ParamRow("number of ranks; None: spark.default.parallelism"),
    "model": ParamRow("the model to train"),
    "backend": ParamRow("who runs the training function (common.backend); excludes num_proc"),
    "store": ParamRow("where data and runs are kept (common.store)"),
    "optimizer": ParamRow("the optimizer; its learning rate is multiplied by the number of ranks"),
    "loss": ParamRow("the loss, or one for each label"),
    "loss_weights": ParamRow("the weight of each label's loss; None: equal ones", None, _floats),
    "sample_weight_col": ParamRow("column with the weight of each row", None, _text),
    "metrics": ParamRow("what is measured besides the loss", []),
    "feature_cols": ParamRow("columns that the model is given, in this order; None: all others", None, _texts),
    "label_cols": ParamRow("columns with what the model shall give", None, _texts),
    "continuous_cols": ParamRow("accepted: columns for NVTabular", None, _texts),
    "categorical_cols": ParamRow("accepted: columns for NVTabular", None, _texts),
    "validation": ParamRow("share of the rows in [0, 1), or a column that is 0 or false in rows to train on"),
    "callbacks": ParamRow("called while it trains", []),
    "batch_size": ParamRow("rows of a batch, on each rank", 32, _int),
    "val_batch_size": ParamRow("rows of a batch when it validates; None: batch_size", None, _int),
    "epochs": ParamRow("how often all rows are seen", 1, _int),
    "train_steps_per_epoch": ParamRow("batches of an epoch, on each rank; None: all rows", None, _int),
    "validation_steps_per_epoch": ParamRow("batches when it validates, on each rank; None: all rows", None, _int),
    "shuffle": ParamRow("whether rows are shuffled", True, _bool),
    "shuffle_buffer_size": ParamRow(
        "(Deprecated) rows that are shuffled among each other; 0: none", None, _int, "ShufflingBufferSize"
    ),
    "partitions_per_process": ParamRow("parquet files for each rank, at most", 10, _int),
    "run_id": ParamRow("name of the run; one that is in the store goes on from its checkpoint", None, _text),
    "transformation_fn": ParamRow("given rows as a pandas DataFrame, returns those that are taken"),
    "transformation_edit_fields": ParamRow("accepted: Petastorm's fields of what transformation_fn returns"),
    "transformation_removed_fields": ParamRow("columns that transformation_fn takes away"),
    "train_reader_num_workers": ParamRow("accepted: one thread reads ahead", 2, None, "TrainReaderNumWorker"),
    "val_reader_num_workers": ParamRow("accepted: one thread reads ahead", 2, None, "ValReaderNumWorker"),
    "reader_pool_type": ParamRow("accepted: thread, process or dummy", "thread"),
    "label_shapes": ParamRow("shape of each label"),
    "inmemory_cache_all": ParamRow("keep each rank's rows in memory", False, _bool, "InMemoryCacheAll"),
    "gradient_compression": ParamRow("compression of the gradients, hvd.Compression.fp16"),
    "compress_sparse_cols": ParamRow("store SparseVectors, and keep them in memory, without their zeros", False, _bool),
    "backward_passes_per_step": ParamRow("batches whose gradients are summed before they are reduced", 1, _int),
    "random_seed": ParamRow("seed of weights, of the order of rows, of the split", None, _int),
    "use_gpu": ParamRow("whether a GPU is used where there is one", True, _bool),
    "mp_start_method": ParamRow("accepted: no processes are started to read", None, _text),
    "verbose": ParamRow("0: says nothing", 1, _int),
    "best_checkpoint": ParamRow(
        "whether the model is that of the epoch with the least loss, not the last one", False, _bool
    ),
}
MODEL: Mapping[str, ParamRow] = {
    "history": ParamRow("what was measured in each epoch"),
    "model": ParamRow("the trained model"),
    "feature_columns": ParamRow("columns that the model is given"),
    "label_columns": ParamRow("columns whose predictions the model gives", None, None, "LabelColumns"),
    "run_id": ParamRow("the run that has trained it", None, _text),
    "_metadata": ParamRow("the columns that it was trained on, by name"),
}


def camel(name: str) -> str:
    """Return the name of a param as methods have it: batch_size, BatchSize."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def declare(table: Mapping[str, ParamRow]) -> Callable[[_Class], _Class]:
    """Add the table's params to a class, with their defaults, setters and getters."""

    def add(cls: _Class) -> _Class:
        defaults = {name: row.default for name, row in table.items()}
        vars_of: dict[str, Any] = {"_defaults": {**getattr(cls, "_defaults", {}), **defaults}}
        for name, row in table.items():
            vars_of[name] = Param(Params._dummy(), name, row.doc, row.convert)  # noqa: SLF001 - as pyspark.ml's own
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
    """Params of tables: given by name alone, None where nothing is said."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__()
        unknown = sorted(set(given) - set(self._defaults))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no param {', '.join(unknown)}; it has {', '.join(sorted(self._defaults))}."
            )
        self._setDefault(**{name: _own(value) for name, value in self._defaults.items()})
        self._set(**{name: value for name, value in given.items() if value is not None})

    def setParams(self, **given: Any) -> Any:  # noqa: N802 - pyspark.ml's name
        """Set params by name."""
        return self._set(**given)


@declare(ESTIMATOR)
class EstimatorParams(_Declared):
    """What every estimator can be told."""

    def _check_params(self, columns: Mapping[str, Column]) -> None:
        """Check what can be told before anything is started.

        Raises
        ------
        ValueError
            Something is missing, or not there.
        """
        get: Any = self
        if not get.getModel():
            raise ValueError("Model parameter is required")
        check_validation(get.getValidation())
        for what, names in (("Feature", get.getFeatureCols()), ("Label", get.getLabelCols())):
            missing = [name for name in names or () if name not in columns]
            if missing:
                raise ValueError(f"{what} columns {missing} not found in training DataFrame metadata")


@declare(MODEL)
class ModelParams(_Declared, HasOutputCols):
    """What every trained model knows. ``columns``: those that it was trained on, by name."""

    def setOutputCols(self, value: list[str]) -> Any:  # noqa: N802 - pyspark.ml's name
        """Name the columns of the predictions; by default ``<label>__output``."""
        return self._set(outputCols=value)

    def setLabelColoumns(self, value: list[str]) -> Any:  # noqa: N802 - Horovod's spelling
        """Set the label columns."""
        return self._set(label_columns=value)


def check_validation(validation: Any) -> None:
    """Check how rows to validate on are chosen.

    Raises
    ------
    ValueError
        It is neither a share nor the name of a column.
    """
    if not validation and validation != 0:
        return
    if isinstance(validation, str):
        return
    if isinstance(validation, bool) or not isinstance(validation, int | float):
        raise ValueError(  # noqa: TRY004 - Horovod's kind
            f'Param validation must be of type "float" or "str", found: {type(validation).__name__}'
        )
    if not 0 <= validation < 1:
        raise ValueError(f"Validation split {validation} must be in the range: [0, 1)")


def _own(value: Any) -> Any:
    """Return a default that no other object has."""
    return value.copy() if isinstance(value, list | dict) else value
