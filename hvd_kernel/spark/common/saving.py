"""Saving of estimators and models as stages of pyspark.ml: with their backend and store, in a Pipeline too.

::

    PATH/metadata   JSON, as of each stage: the params that JSON can hold; ``store`` and ``backend`` as arguments
    PATH/objects    parquet: one pickle, of all other params, in parts

A model of one's own is code, and so is what is loaded: load only what you trust, as with ``torch.load``.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
from typing import Any, Self

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from hvd_kernel.spark.common.data.columns import Column, from_json, to_json

_PART = 64 << 20
_DESCRIBED = ("store", "backend")
_COLUMNS = "_metadata"


class StageWriter(MLWriter):
    """Writes a stage."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802 - pyspark.ml's name
        """Write it below a path that has nothing yet."""
        texts, objects = {}, {}
        for param, value in self._stage.extractParamMap().items():
            if self._stage.isSet(param):
                kept = _as_json(param.name, value)
                if kept is None:
                    objects[param.name] = value
                else:
                    texts[param.name] = kept
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sc, paramMap=texts)
        data = self._stage.packed(objects)
        parts = [(at, bytearray(data[at : at + _PART])) for at in range(0, max(len(data), 1), _PART)]
        frame = self.sparkSession.createDataFrame(parts, "at long, part binary")
        frame.coalesce(1).write.parquet(f"{path}/objects")


class StageReader(MLReader[Any]):
    """Reads a stage of a class."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Return the stage; code of its params is run."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        rows = self.sparkSession.read.parquet(f"{path}/objects").orderBy("at").collect()
        stage = self._cls()
        stage._resetUid(metadata["uid"])  # noqa: SLF001 - as pyspark.ml's own reader
        given = {name: _from_json(name, value) for name, value in metadata["paramMap"].items()}
        given |= self._cls.unpacked(b"".join(bytes(row["part"]) for row in rows), given)
        stage._set(**given)  # noqa: SLF001 - as above
        return stage


class Saved(MLWritable, MLReadable[Any]):
    """A stage that can be saved: ``stage.write().overwrite().save(path)``, and loaded: ``Class.load(path)``."""

    def write(self) -> StageWriter:
        """Return what writes it."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Return what reads one."""
        return StageReader(cls)

    def packed(self, objects: dict[str, Any]) -> bytes:
        """Return params that JSON cannot hold, together: an optimizer's parameters stay those of its model."""
        data: bytes = cloudpickle.dumps(objects)
        return data

    @classmethod
    def unpacked(cls, data: bytes, given: dict[str, Any]) -> dict[str, Any]:
        """Return them again. ``given``: the params that JSON holds."""
        del given
        found: dict[str, Any] = pickle.load(io.BytesIO(data))  # noqa: S301 - see the head of this file
        return found

    @classmethod
    def load(cls, path: str) -> Self:
        """Return the stage that was saved below a path."""
        loaded: Self = cls.read().load(path)
        return loaded


def _as_json(name: str, value: Any) -> Any:
    """Return what JSON holds of a param, so that it comes back as it was; None: it cannot."""
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
    """Return the value where JSON gives the same back."""
    try:
        return value if value is not None and json.loads(json.dumps(value)) == value and _exact(value) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _exact(value: Any) -> bool:
    """Tell whether it is made of JSON's own kinds alone: a tuple, or a tensor that equals a number, is not."""
    if isinstance(value, dict):
        return all(type(key) is str and _exact(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_exact, value))
    return value is None or type(value) in {str, int, float, bool}
