"""Names on this rank, looked at without running the user's code: completion and inspection, also while a cell runs.

Terms.
  chain     names, attributes and constant subscripts: ``model.layers[0]``. It is resolved as inspect.getattr_static
            finds things: no property, no ``__getattr__``, no ``__getitem__`` but a dict's, list's and tuple's own
  members   what ``dir`` would say of plain objects; ``__dir__`` is not asked
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
"""Attributes of a class that are what they seem, although they are descriptors."""

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (ModuleType, "module"),
    (type, "class"),
    ((*_SAFE, staticmethod, classmethod), "function"),
    (property, "property"),
)


def complete(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return what can stand at the end of ``text``, and how many of its characters that replaces."""
    names = dict(control.names)  # a copy, made in one step: the running cell may add to the original
    length, items = matches(names, content["text"])
    return {"length": length, "items": items[:MAX_ITEMS]}, []


def inspection(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Describe what a chain leads to; {} when it leads nowhere."""
    try:
        found = resolve(dict(control.names), content["chain"])
    except LookupError:
        return {}, []
    return {"fields": fields(found, content["chain"], content["detail"])}, []


def known(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Say which of some names are variables here."""
    return {"known": [name for name in content["names"] if name in control.names]}, []


def matches(names: Mapping[str, Any], text: str) -> tuple[int, list[tuple[str, str]]]:
    """Return the length of what the cursor stands behind, and (completion, kind) of all that begins with it."""
    for pattern, find in _FINDERS:
        if at := pattern.search(text):
            part = at["part"]
            try:
                found = find(names, at)
            except LookupError:
                return 0, []
            return len(part), sorted((name, kind) for name, kind in found if name.startswith(part))
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
    """Return what a chain leads to.

    Raises
    ------
    LookupError
        If it leads nowhere, or further than can be seen without running code.
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
    """Return an attribute that is stored, in the object or in its class.

    Raises
    ------
    LookupError
        If there is none, or it would have to be computed.
    """
    for stored in _registered(owner).values():
        if name in stored:
            return stored[name]
    found = inspect.getattr_static(owner, name, _NOTHING)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if isinstance(found, MemberDescriptorType) and not issubclass(type(owner), type):
        return _slot(found, owner)
    if found is _NOTHING or (not isinstance(found, (type, *_SAFE)) and _is_descriptor(found)):
        raise LookupError(name)
    return found


def _slot(slot: MemberDescriptorType, owner: Any) -> Any:
    try:
        return slot.__get__(owner, type(owner))
    except AttributeError:  # never assigned
        raise LookupError(slot.__name__) from None


def members(owner: Any) -> dict[str, Any]:
    """Return stored attributes of an object and its classes, by name, as they are stored."""
    found: dict[str, Any] = {}
    line = type.mro(owner) if issubclass(type(owner), type) else type.mro(type(owner))
    for each in reversed(line):
        found |= vars(each)
    for stored in _registered(owner).values():
        found |= stored
    return {
        name: value for name, value in (found | _own(owner)).items() if isinstance(name, str) and name.isidentifier()
    }


def _own(owner: Any) -> dict[str, Any]:
    try:
        stored = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return dict(stored)


def _registered(owner: Any) -> dict[str, dict[str, Any]]:
    """Where a framework's object keeps what it finds by ``__getattr__``."""
    return {place: dict(held) for each in registry.in_use() for place, held in each.parts(owner).items()}


def _is_descriptor(found: Any) -> bool:
    return inspect.getattr_static(type(found), "__get__", _NOTHING) is not _NOTHING


def _kind(value: Any) -> str:
    return next((kind for types, kind in _KINDS if issubclass(type(value), types)), "instance")


_NOTHING = object()

_TRUSTED = {"builtins", "functools", "numpy"}
"""Packages whose callable objects (np.linspace is one) may be asked for signature and docstring."""


def fields(found: Any, chain: str, detail: int) -> list[tuple[str, str]]:
    """Describe an object in titled fields: code by signature and docstring, all else by its class alone."""
    kind, own = _kind(found), type(found)
    if kind == "instance" and not (_TRUSTED & {own.__module__.split(".")[0]} and callable(found)):
        doc = None if own.__module__ == "builtins" else inspect.getattr_static(own, "__doc__", None)
        told = [("Type", own.__qualname__), ("Class docstring", inspect.cleandoc(doc) if isinstance(doc, str) else "")]
    else:
        told = [(title, _safely(say, found)) for title, say in _SAYINGS[: None if detail else -1]]
        told = [(title, chain + text if title == "Signature" and text else text) for title, text in told]
    return [(title, text) for title, text in told if text]


_SAYINGS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("Signature", inspect.signature),
    ("Docstring", inspect.getdoc),
    ("Type", lambda found: type(found).__name__),
    ("File", inspect.getsourcefile),
    ("Source", inspect.getsource),
)


def _safely(say: Callable[[Any], Any], found: Any) -> str:
    try:
        return str(say(found) or "")
    except (ValueError, TypeError, OSError):  # C code, or a file that is gone
        return ""
