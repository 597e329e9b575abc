"""Serialization of Python values for checkpoints, without pickle: a tree in JSON, and the tensors that it names.

A checkpoint may come from anywhere, so reading one builds nothing but the types listed here; no class is looked up and
no code is run. In the tree a JSON object is always {kind: what}; lists, strings, numbers, booleans and null are
themselves.

Terms.
  tensor  bytes with an element type and a shape; what makes one of an object, and back, is in a table of kinds
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
    """Elements in C order, and what they are."""

    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    data: memoryview  # of bytes

    @property
    def bytes_needed(self) -> int:
        """How many bytes the elements take."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Kind:
    """Objects that hold one tensor."""

    type: type
    to_tensor: Callable[[Any], Tensor]
    from_tensor: Callable[[Tensor], Any]


class NotStorable(TypeError):
    """A value is of a type that no checkpoint can hold; the message names it and says what to keep instead."""


def _of_array(array: npt.NDArray[Any]) -> Tensor:
    if array.dtype.name not in ITEM_BYTES or not array.dtype.isnative:
        raise NotStorable(f"an array of {array.dtype} is nothing that a checkpoint can hold")
    return Tensor(array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _to_array(tensor: Tensor) -> npt.NDArray[Any]:
    return np.array(tensor.data).view(tensor.dtype).reshape(tensor.shape)


KINDS: dict[str, Kind] = {
    "numpy": Kind(np.ndarray, _of_array, _to_array),
    "numpy scalar": Kind(np.generic, lambda value: _of_array(np.asarray(value)), lambda one: _to_array(one)[()]),
}
"""By the name that is in the file; a framework adds its own."""

_PLAIN = (type(None), bool, int, float, str)


class Encoder:
    """Turns values into trees, and gathers the tensors in them by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._writers: dict[type, Callable[[Any, str], Any]] = {
            **dict.fromkeys(_PLAIN, _itself),
            list: self._each,
            bytes: lambda value, _: {"bytes": value.hex()},
            complex: lambda value, _: {"complex": [value.real, value.imag]},
            tuple: lambda value, path: {"tuple": self._each(value, path)},
            set: lambda value, path: {"set": self._each(value, path)},
            frozenset: lambda value, path: {"frozenset": self._each(value, path)},
            dict: lambda value, path: {"dict": self._pairs(value, path)},
            OrderedDict: lambda value, path: {"ordered": self._pairs(value, path)},
        }

    def encode(self, value: Any, path: str) -> Any:
        """Return the tree of a value, whose tensors are named by their place below ``path``.

        Raises
        ------
        NotStorable
            Something in it is of another type; the message has its place.
        """
        write: Callable[[Any, str], Any] = self._writers.get(type(value), self._tensor)
        return write(value, path)

    def _each(self, values: Any, path: str) -> list[Any]:
        return [self.encode(value, f"{path}.{number}") for number, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], path: str) -> list[Any]:
        return [[self.encode(key, f"{path}.key"), self.encode(each, f"{path}.{key}")] for key, each in values.items()]

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
        It is no tree of ``Encoder``, or a tensor is missing, or is of a framework that this process has not imported.
    """
    if isinstance(tree, list):
        return [decode(one, tensors) for one in tree]
    if not isinstance(tree, dict):
        return tree
    try:
        ((kind, what),) = tree.items()
        return _READERS[kind](what, tensors)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{str(tree)[:80]} is no value ({type(error).__name__}: {error})") from None


def _tensor(what: list[str], tensors: Mapping[str, Tensor]) -> Any:
    kind, name = what
    if kind not in KINDS:
        raise ValueError(f"{name} is a tensor of {kind}, whose hvd_kernel.{kind} is not imported")
    return KINDS[kind].from_tensor(tensors[name])


def _itself(value: Any, _: Any) -> Any:
    return value


_READERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "bytes": lambda what, _: bytes.fromhex(what),
    "complex": lambda what, _: complex(*what),
    "tensor": _tensor,
    "tuple": lambda what, tensors: tuple(decode(one, tensors) for one in what),
    "set": lambda what, tensors: {decode(one, tensors) for one in what},
    "frozenset": lambda what, tensors: frozenset(decode(one, tensors) for one in what),
    "dict": lambda what, tensors: {decode(key, tensors): decode(value, tensors) for key, value in what},
    "ordered": lambda what, tensors: OrderedDict((decode(key, tensors), decode(value, tensors)) for key, value in what),
}
