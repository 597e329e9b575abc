"""Serialization of Python values for checkpoints, without pickle: a tree in JSON, and the tensors that it names.

A checkpoint may come from an untrusted source, so reading one builds only the types listed here; no class is looked up
and no code is run. In the tree a JSON object is always {kind: content}; lists, strings, numbers, booleans and null
represent themselves.

Terms.
  tensor  bytes with an element type and a shape; the table of kinds converts objects to tensors and back
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


@dataclass(frozen=True)
class Tensor:
    """Elements in C order, with their type and shape."""

    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    data: memoryview  # of bytes

    @property
    def bytes_needed(self) -> int:
        """Number of bytes of the elements."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Kind:
    """Conversion of objects of one type to tensors and back."""

    type: type
    to_tensor: Callable[[Any], Tensor]
    from_tensor: Callable[[Tensor], Any]


class NotStorable(TypeError):
    """Error for a value that a checkpoint cannot hold; the message has its type and the supported types."""


def _of_array(array: npt.NDArray[Any]) -> Tensor:
    if array.dtype.name not in ITEM_BYTES or not array.dtype.isnative:
        raise NotStorable(f"a checkpoint cannot hold an array of {array.dtype}")
    return Tensor(array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _to_array(tensor: Tensor) -> npt.NDArray[Any]:
    return np.array(tensor.data).view(tensor.dtype).reshape(tensor.shape)


KINDS: dict[str, Kind] = {
    "numpy": Kind(np.ndarray, _of_array, _to_array),
    "numpy scalar": Kind(np.generic, lambda value: _of_array(np.asarray(value)), lambda tensor: _to_array(tensor)[()]),
}
"""Conversions by their name in the file; frameworks add theirs."""

_PLAIN = (type(None), bool, int, float, str)


class Encoder:
    """Converts values to trees, and collects their tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._writers: dict[type, Callable[[Any, str], Any]] = {
            **dict.fromkeys(_PLAIN, _itself),
            list: self._items,
            bytes: lambda value, _: {"bytes": value.hex()},
            complex: lambda value, _: {"complex": [value.real, value.imag]},
            tuple: lambda value, path: {"tuple": self._items(value, path)},
            set: lambda value, path: {"set": self._items(value, path)},
            frozenset: lambda value, path: {"frozenset": self._items(value, path)},
            dict: lambda value, path: {"dict": self._pairs(value, path)},
            OrderedDict: lambda value, path: {"ordered": self._pairs(value, path)},
        }

    def encode(self, value: Any, path: str) -> Any:
        """Return the tree of a value; its tensors are named by their path below ``path``.

        Raises
        ------
        NotStorable
            A part of it has another type; the message has its path.
        """
        write: Callable[[Any, str], Any] = self._writers.get(type(value), self._tensor)
        return write(value, path)

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.encode(value, f"{path}.{number}") for number, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], path: str) -> list[Any]:
        return [[self.encode(key, f"{path}.key"), self.encode(value, f"{path}.{key}")] for key, value in values.items()]

    def _tensor(self, value: Any, path: str) -> dict[str, list[str]]:
        for name, kind in KINDS.items():
            if isinstance(value, kind.type):
                while path in self.tensors:  # {"a": {"b": …}, "a.b": …}
                    path += "'"
                try:
                    self.tensors[path] = kind.to_tensor(value)
                except NotStorable as error:
                    raise NotStorable(f"{path}: {error}") from None
                return {"tensor": [name, path]}
        raise NotStorable(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold: it is "
            "read without running code. Keep numbers, strings, lists, tuples, sets, dicts, arrays and tensors."
        )


def decode(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of a tree.

    Raises
    ------
    ValueError
        It is not a tree of ``Encoder``, or a tensor is missing or of a framework that this process has not imported.
    """
    if isinstance(tree, list):
        return [decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    try:
        ((kind, content),) = tree.items()
        return _READERS[kind](content, tensors)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{str(tree)[:80]} is no value ({type(error).__name__}: {error})") from None


def _tensor(content: list[str], tensors: Mapping[str, Tensor]) -> Any:
    kind, name = content
    if kind not in KINDS:
        raise ValueError(f"{name} is a tensor of {kind}, whose hvd_kernel.{kind} is not imported")
    return KINDS[kind].from_tensor(tensors[name])


def _itself(value: Any, _: Any) -> Any:
    return value


_READERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "bytes": lambda digits, _: bytes.fromhex(digits),
    "complex": lambda parts, _: complex(*parts),
    "tensor": _tensor,
    "tuple": lambda items, tensors: tuple(decode(item, tensors) for item in items),
    "set": lambda items, tensors: {decode(item, tensors) for item in items},
    "frozenset": lambda items, tensors: frozenset(decode(item, tensors) for item in items),
    "dict": lambda pairs, tensors: {decode(key, tensors): decode(value, tensors) for key, value in pairs},
    "ordered": lambda pairs, tensors: OrderedDict(
        (decode(key, tensors), decode(value, tensors)) for key, value in pairs
    ),
}
