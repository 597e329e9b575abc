"""Lookup of names on this rank without running the user's code: completion and inspection, also while a cell runs.

Terms.
  chain     names, attributes and constant subscripts: ``model.layers[0]``. It is resolved like inspect.getattr_static:
            without properties, ``__getattr__`` and ``__getitem__``, except those of dict, list and tuple
  members   the result of ``dir`` for plain objects; ``__dir__`` is not called
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from hvd_kernel.frameworks import registry

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

MAX_ITEMS = 2000

_PARTS = r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[(?:-?\d+|'[^'\\]*'|\"[^\"\\]*\")\])*"
_MEMBER = re.compile(rf"(?<![\w.\])])(?P<owner>{_PARTS})\.(?P<part>\w*)$")
_KEY = re.compile(rf"(?<![\w.\])])(?P<owner>{_PARTS})\[(?P<quote>['\"])(?P<part>[^'\"\\]*)$")
_NAME = re.compile(r"(?<![\w.'\"])(?P<part>\w*)$")
_SAFE = (FunctionType, BuiltinFunctionType, MethodType, type(str.join), type(object.__init__), type(dict.__len__))
"""Types of class attributes that are shown as they are, although they are descriptors."""

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (ModuleType, "module"),
    (type, "class"),
    ((*_SAFE, staticmethod, classmethod), "function"),
    (property, "property"),
)


def complete(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return completions of the end of ``text``, and the number of characters that they replace."""
    names = dict(control.names)  # a copy, made in one step: the running cell may add to the original
    length, items = matches(names, content["text"])
    return {"length": length, "items": items[:MAX_ITEMS]}, []


def inspection(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Describe the value of a chain; {} if it has none."""
    try:
        value = resolve(dict(control.names), content["chain"])
    except LookupError:
        return {}, []
    return {"fields": fields(value, content["chain"], content["detail"])}, []


def known(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return which of some names are variables here."""
    return {"known": [name for name in content["names"] if name in control.names]}, []


def matches(names: Mapping[str, Any], text: str) -> tuple[int, list[tuple[str, str]]]:
    """Return the length of the part before the cursor, and (completion, kind) of all names that start with it."""
    for pattern, find in _FINDERS:
        if at := pattern.search(text):
            part = at["part"]
            try:
                candidates = find(names, at)
            except LookupError:
                return 0, []
            return len(part), sorted((name, kind) for name, kind in candidates if name.startswith(part))
    return 0, []


def _members_of(names: Mapping[str, Any], at: re.Match[str]) -> Iterable[tuple[str, str]]:
    owner = resolve(names, at["owner"])
    hidden = not at["part"].startswith("_")
    return [(name, _kind(value)) for name, value in members(owner).items() if not (hidden and name.startswith("_"))]


def _keys_of(names: Mapping[str, Any], at: re.Match[str]) -> Iterable[tuple[str, str]]:
    owner = resolve(names, at["owner"])
    return [(key, "key") for key in list(owner) if type(key) is str] if type(owner) is dict else []


def _plain(names: Mapping[str, Any], at: re.Match[str]) -> Iterable[tuple[str, str]]:
    hidden = not at["part"].startswith("_")
    return [(name, _kind(value)) for name, value in names.items() if not (hidden and name.startswith("_"))]


_FINDERS: tuple[tuple[re.Pattern[str], Callable[[Mapping[str, Any], re.Match[str]], Iterable[tuple[str, str]]]], ...]
_FINDERS = ((_KEY, _keys_of), (_MEMBER, _members_of), (_NAME, _plain))


def resolve(names: Mapping[str, Any], chain: str) -> Any:
    """Return the value of a chain.

    Raises
    ------
    LookupError
        It has no value, or its value cannot be determined without running code.
    """
    try:
        node = ast.parse(chain.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise LookupError(chain) from None
    return _walk(names, node)


def _walk(names: Mapping[str, Any], node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return names[node.id] if node.id in names else vars(builtins)[node.id]
    if isinstance(node, ast.Attribute):
        return attribute(_walk(names, node.value), node.attr)
    if isinstance(node, ast.Subscript):
        return _item(_walk(names, node.value), _constant(node.slice))
    raise LookupError("neither a name nor an attribute nor a subscript")


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise LookupError("a subscript that would have to be computed") from None


def _item(owner: Any, key: Any) -> Any:
    if type(owner) in {dict, list, tuple}:
        try:
            return owner[key]
        except TypeError:
            raise LookupError(key) from None
    children = _registered(owner).get("_modules", {})
    return children[str(key)]  # nn.Sequential and nn.ModuleList


def attribute(owner: Any, name: str) -> Any:
    """Return an attribute that is stored in the object or in its class.

    Raises
    ------
    LookupError
        The attribute does not exist, or would have to be computed.
    """
    for stored in _registered(owner).values():
        if name in stored:
            return stored[name]
    value = inspect.getattr_static(owner, name, _NOTHING)
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, MemberDescriptorType) and not issubclass(type(owner), type):
        return _slot(value, owner)
    if value is _NOTHING or (not isinstance(value, (type, *_SAFE)) and _is_descriptor(value)):
        raise LookupError(name)
    return value


def _slot(slot: MemberDescriptorType, owner: Any) -> Any:
    try:
        return slot.__get__(owner, type(owner))
    except AttributeError:  # never assigned
        raise LookupError(slot.__name__) from None


def members(owner: Any) -> dict[str, Any]:
    """Return the stored attributes of an object and its classes, by name."""
    attributes: dict[str, Any] = {}
    classes = type.mro(owner) if issubclass(type(owner), type) else type.mro(type(owner))
    for cls in reversed(classes):
        attributes |= vars(cls)
    for stored in _registered(owner).values():
        attributes |= stored
    attributes |= _instance_dict(owner)
    return {name: value for name, value in attributes.items() if isinstance(name, str) and name.isidentifier()}


def _instance_dict(owner: Any) -> dict[str, Any]:
    try:
        stored = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return dict(stored)


def _registered(owner: Any) -> dict[str, dict[str, Any]]:
    """Return the dicts in which a framework's object stores attributes that ``__getattr__`` returns."""
    return {place: dict(held) for adapter in registry.in_use() for place, held in adapter.parts(owner).items()}


def _is_descriptor(value: Any) -> bool:
    return inspect.getattr_static(type(value), "__get__", _NOTHING) is not _NOTHING


def _kind(value: Any) -> str:
    return next((kind for types, kind in _KINDS if issubclass(type(value), types)), "instance")


_NOTHING = object()

_TRUSTED = {"builtins", "functools", "numpy"}
"""Packages whose callable objects (such as np.linspace) have safe signatures and docstrings."""


def fields(value: Any, chain: str, detail: int) -> list[tuple[str, str]]:
    """Describe an object in titled fields: code by signature and docstring, any other object by its class."""
    kind, cls = _kind(value), type(value)
    if kind == "instance" and not (_TRUSTED & {cls.__module__.split(".")[0]} and callable(value)):
        doc = None if cls.__module__ == "builtins" else inspect.getattr_static(cls, "__doc__", None)
        texts = [("Type", cls.__qualname__), ("Class docstring", inspect.cleandoc(doc) if isinstance(doc, str) else "")]
    else:
        texts = [(title, _safely(describe, value)) for title, describe in _FIELDS[: None if detail else -1]]
        texts = [(title, chain + text if title == "Signature" and text else text) for title, text in texts]
    return [(title, text) for title, text in texts if text]


_FIELDS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("Signature", inspect.signature),
    ("Docstring", inspect.getdoc),
    ("Type", lambda value: type(value).__name__),
    ("File", inspect.getsourcefile),
    ("Source", inspect.getsource),
)


def _safely(describe: Callable[[Any], Any], value: Any) -> str:
    try:
        return str(describe(value) or "")
    except (ValueError, TypeError, OSError):  # C code, or a deleted file
        return ""
