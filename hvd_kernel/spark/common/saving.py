"""Saving of estimators and models as stages of pyspark.ml with their backend and store, also in a Pipeline.

::

    PATH/metadata   JSON: params that JSON can store; ``store`` and ``backend`` as constructor arguments
    PATH/objects    parquet: a pickle of all other params, in parts

Loading a stage runs code, as models are pickled: load only trusted files, as with ``torch.load``.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
from typing import Any, Self

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from hvd_kernel.spark.common.columns import Column, from_json, to_json

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
