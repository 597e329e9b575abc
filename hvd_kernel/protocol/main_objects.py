"""Pickles whose reader uses its own classes and functions of ``__main__``, those of cells and scripts.

cloudpickle copies them by value: ``broadcast_object(Color.RED, 0) == Color.RED`` would be False on the other ranks.
Here a pickle still contains the copy, and with it a digest of the definition. A reader whose ``__main__`` has the same
definition under the same name uses its own; one that lacks it, or has another definition, uses the copy.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import io
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle

from hvd_kernel.protocol import distributed_tensors

_MAIN = "__main__"
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...))
_NOT_SOURCE = frozenset({"__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__", "_abc_impl"})
"""Attributes of a class that depend on Python's state, or on where the definition is in its file."""


class MainPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes and functions of ``__main__`` for readers that may have them."""

    def reducer_override(self, obj: Any) -> Any:
        """Add the digest of a definition to cloudpickle's copy of it; refuse DTensors that this process has in part."""
        whole = distributed_tensors.reduced(obj)
        if whole is not None:
            return whole
        reduced = super().reducer_override(obj)
        if not (isinstance(reduced, tuple) and _is_of_main(obj)):
            return reduced
        make, args, state, *_, set_state = reduced
        return _adopt, (obj.__qualname__, _digest(obj), make, args), (set_state, state), None, None, _complete


def dumps(value: Any) -> bytes:
    """Return the pickle of a value."""
    out = io.BytesIO()
    MainPickler(out).dump(value)
    return out.getvalue()


def _adopt(name: str, digest: str, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return this process's definition if it is the same, else the copy, to which its attributes are added later."""
    local = _find(name)
    return local if _is_definition(local) and _digest(local) == digest else make(*args)


def _complete(obj: Any, state: tuple[Callable[[Any, Any], Any], Any]) -> None:
    """Add the attributes of a copy; this process's own definitions have theirs."""
    set_state, attributes = state
    if not _is_of_main(obj):
        set_state(obj, attributes)


def _is_of_main(obj: Any) -> bool:
    return _is_definition(obj) and obj.__module__ == _MAIN and _find(obj.__qualname__) is obj


def _is_definition(obj: Any) -> bool:
    return isinstance(obj, (type, types.FunctionType))


def _find(name: str) -> Any:
    """Return the object of a qualified name in ``__main__``; None if there is no such object."""
    scope: Any = sys.modules[_MAIN]
    for part in name.split("."):
        scope = getattr(scope, part, None)
    return scope


def _digest(definition: Any) -> str:
    """Return a digest of a definition's code and constants, without its line numbers or present state.

    The digest of a function covers the constants among its globals, because a copy brings those of its process.
    """
    if isinstance(definition, type):
        parts = [*_of_class(definition)]
    else:
        parts = [*_of_function(definition), *_of_globals(definition.__code__, definition.__globals__)]
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()


def _of_class(cls: type) -> Iterator[Any]:
    yield "class", cls.__qualname__, _name(type(cls)), [_name(base) for base in cls.__bases__]
    if isinstance(cls, enum.EnumMeta):
        members: Mapping[str, Any] = cls.__members__
        yield [(name, _of_value(member._value_)) for name, member in members.items()]
    described = {name: _of_value(value) for name, value in vars(cls).items() if name not in _NOT_SOURCE}
    yield sorted((name, text) for name, text in described.items() if text is not None)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield "function", function.__qualname__, [*_of_code(function.__code__)]
    yield _of_value(function.__defaults__), [*map(_of_value, sorted((function.__kwdefaults__ or {}).items()))]
    yield [_of_cell(cell) for cell in function.__closure__ or ()]


def _of_globals(code: types.CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for name in sorted(names):
        if name not in variables:
            yield name, "absent"  # a copy brings it, unless it is a builtin
        elif type(value := variables[name]) in _CONSTANTS:
            yield name, repr(value)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_globals(constant, variables)


def _of_code(code: types.CodeType) -> Iterator[Any]:
    yield code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags
    yield code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    yield [_of_value(constant) for constant in code.co_consts]


def _of_cell(cell: types.CellType) -> Any:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return "empty"
    return _of_value(content)


def _of_value(value: Any) -> Any:
    """Describe constants by value and functions by code; None for everything else, which may be state."""
    if type(value) in _CONSTANTS:
        return repr(value)
    return next((describe(value) for kind, describe in _DESCRIBED.items() if isinstance(value, kind)), None)


def _of_reference(value: Any) -> Any:
    is_ours = isinstance(value, types.FunctionType) and value.__module__ == _MAIN and value.__closure__ is None
    return [*_of_function(value)] if is_ours else _name(value)


def _name(definition: Any) -> tuple[str | None, str]:
    return definition.__module__, definition.__qualname__


_DESCRIBED: dict[type, Callable[[Any], Any]] = {
    tuple: lambda value: [*map(_of_value, value)],
    frozenset: lambda value: sorted(repr(_of_value(entry)) for entry in value),  # in no order of hashes
    types.CodeType: lambda value: [*_of_code(value)],
    types.FunctionType: _of_reference,
    types.BuiltinFunctionType: _name,
    type: _name,
    staticmethod: lambda value: ["static", _of_value(value.__func__)],
    classmethod: lambda value: ["class", _of_value(value.__func__)],
    property: lambda value: [_of_value(part) for part in (value.fget, value.fset, value.fdel)],
    functools.cached_property: lambda value: _of_value(value.func),
}
