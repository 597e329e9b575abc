"""YAML documents that know line and column of every value, for errors that say where.

Terms.
  path   the names and numbers that lead to a value: ("environment", "replicas", "n_workers")
  model  a msgspec.Struct that says which fields there are, and their types
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped,unused-ignore]

from hvd_kernel.jobs.spec import JobError

MAX_BYTES = 1 << 16
MAX_VALUES = 5_000
MAX_DEPTH = 50
_LEFT_OUT = re.compile(r"^([ \t]*)\.\.\.[ \t]*(#.*)?$", re.MULTILINE)
_AT = re.compile(r"(?P<what>.*) - at `\$(?P<path>.*)`", re.DOTALL)
_PATH = re.compile(r"\.([^.\[\]]+)|\[([0-9]+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", "tag:yaml.org,2002:binary")

_TEXT = "tag:yaml.org,2002:str"
_LONGEST_NUMBER = 400

Path = tuple[str | int, ...]
Model = typing.TypeVar("Model", bound=msgspec.Struct)


@dataclass
class Document:
    """A parsed file, and where each of its values stands."""

    name: str
    value: Any = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def error(self, path: Path, what: str) -> JobError:
        """Return an error on the value at a path, or on the nearest one above it that is there."""
        near = next(path[:n] for n in range(len(path), -1, -1) if path[:n] in self.marks or n == 0)
        line, column = self.marks.get(near, (1, 1))
        named = f"{'.'.join(map(str, path))}: " if path else ""
        return JobError(f"{self.name}:{line}:{column}: {named}{what.rstrip('.')}.")

    def convert(self, model: type[Model], path: Path = ()) -> Model:
        """Return the value at a path as a model.

        Raises
        ------
        JobError
            A field is unknown, missing or of another type; what is allowed: said.
        """
        value = self.value
        for step in path:
            value = value[step]
        if not isinstance(value, dict):
            raise self.error(path, f"must be a mapping of names to values, not {_shown(value)}")
        try:
            return msgspec.convert(value, model)
        except msgspec.ValidationError as error:
            raise self._told(str(error), model, path) from None

    def _told(self, text: str, model: type, path: Path) -> JobError:
        found = _AT.fullmatch(text)
        what, below = (found["what"], _steps(found["path"])) if found else (text, ())
        if missing := _MISSING.fullmatch(what):
            return self.error((*path, *below, missing[1]), "is missing")
        unknown = _UNKNOWN.fullmatch(what)
        if not unknown:
            return self.error(path + below, _plain(what))
        allowed = _fields(model, below)
        near = difflib.get_close_matches(unknown[1], allowed, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return self.error((*path, *below, unknown[1]), f"is unknown here: {hint}allowed: {', '.join(allowed)}")


def parse(text: str, name: str) -> Document:
    """Parse one YAML document; a line of three dots, as documentation has them, stands for something left out.

    Raises
    ------
    JobError
        It is not YAML, too large, or has a name twice.
    """
    root = _nodes(_LEFT_OUT.sub(r"\1#..", text), name, yaml.compose)  # a comment as long as the dots
    return _document(root, name)


def parse_all(text: str, name: str) -> list[Document]:
    """Parse the YAML documents of one file, with ``---`` between them, as kubectl takes them; empty ones are left out.

    Raises
    ------
    JobError
        As ``parse``.
    """
    nodes = _nodes(text, name, lambda text, Loader: list(yaml.compose_all(text, Loader)))  # noqa: N803 - PyYAML's name
    found = [_document(node, name) for node in nodes if not _is_empty(node)]
    return found or [_document(None, name)]


def _nodes(text: str, name: str, compose: Any) -> Any:
    document = Document(name)
    if len(text) > MAX_BYTES:
        raise document.error((), f"the file has {len(text)} characters; {MAX_BYTES} are allowed")
    try:
        _check_extent(text, document)
        return compose(text, Loader=_LOADER)
    except JobError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.marks[()] = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise document.error((), f"this is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise document.error((), f"this is not YAML: {str(error).splitlines()[0]}") from None


def _check_extent(text: str, document: Document) -> None:
    """Refuse what has too many values or levels, before libyaml's composer, which ends the process on deep ones."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or number > 2 * MAX_VALUES:
            document.marks[()] = (event.start_mark.line + 1, event.start_mark.column + 1)
            raise document.error((), f"here are more than {MAX_DEPTH} levels, or {MAX_VALUES} values")


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _document(root: yaml.Node | None, name: str) -> Document:
    document = Document(name)
    if root is None:
        raise document.error((), "the file is empty")
    document.value = _value(root, (), document)
    return document


def ignored_fields(model: msgspec.Struct | None, path: Path) -> list[str]:
    """Return a sentence on each field that a file has and that is ignored: its type's description says why."""
    if model is None:
        return []
    told = []
    for name, why in _reasons(type(model)):
        if getattr(model, name) is not None:
            told.append(f"{'.'.join(map(str, (*path, name)))} is ignored: {why}")
    return told


@functools.cache
def _reasons(model: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    hints = typing.get_type_hints(model, include_extras=True)
    metas = ((name, next(iter(getattr(hint, "__metadata__", ())), None)) for name, hint in hints.items())
    return tuple(
        (name, meta.description) for name, meta in metas if isinstance(meta, msgspec.Meta) and meta.description
    )


def _value(node: yaml.Node, path: Path, document: Document) -> Any:
    document.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if len(document.marks) > MAX_VALUES or len(path) > MAX_DEPTH:
        raise document.error((), f"more than {MAX_VALUES} values, or {MAX_DEPTH} levels: aliases multiply them")
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, (*path, number), document) for number, each in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    return _scalar(node, path, document)


def _mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise document.error(path, "must be a name with a value")
        if key.value in found:
            line = document.marks[*path, key.value][0]
            raise document.error((*path, key.value), f"appears twice, in lines {line} and {key.start_mark.line + 1}")
        found[key.value] = _value(value, (*path, key.value), document)
    return found


def _scalar(node: yaml.Node, path: Path, document: Document) -> Any:
    if node.tag in _TEXTS:
        return node.value
    if node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:  # 1:1:1:... is a number to YAML, and takes its time
        raise document.error(path, f"{_shown(node.value)} is too long for {node.tag}")
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        raise document.error(path, f"{_shown(node.value)} cannot be read as {node.tag}") from None


def _steps(text: str) -> Path:
    """Return what ``.a.b[0]`` leads to, up to the first step that msgspec does not name."""
    found: list[str | int] = []
    for name, number in _PATH.findall(text):
        if number == "...":
            break
        found.append(int(number) if number else name)
    return tuple(found)


def _fields(model: Any, path: Path) -> list[str]:
    """Return the names of the fields of the model that a path leads to from a model."""
    for step in path:
        hints = typing.get_type_hints(_struct(model)) if isinstance(step, str) else {}
        renamed = dict(zip(_struct(model).__struct_encode_fields__, _struct(model).__struct_fields__, strict=True))
        model = hints[renamed[str(step)]] if hints else typing.get_args(model)[0]
    return sorted(_struct(model).__struct_encode_fields__)


def _struct(model: Any) -> Any:
    """Return the struct of ``Struct``, ``Struct | None``, ``list[Struct]``; of several the first."""
    if isinstance(model, types.UnionType) or typing.get_origin(model) is not None:
        return next(found for found in map(_struct, typing.get_args(model)) if found is not None)
    return model if isinstance(model, type) and issubclass(model, msgspec.Struct) else None


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "names with values",
    "array": "a list",
    "null": "nothing",
}
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: (>=|<=|>|<) ([^`]*))?(?:, got `(\w+)`)?")


def _plain(what: str) -> str:
    """Return msgspec's words for a type in plain ones: "must be a whole number, not text"."""
    found = _EXPECTED.fullmatch(what)
    if not found:
        return what
    wanted = " or ".join(_WORDS.get(each, each) for each in found[1].split(" | ") if each != "null")
    bound = f", {found[2]} {found[3]}" if found[2] else ""
    return f"must be {wanted}{bound}" + (f", not {_WORDS.get(found[4], found[4])}" if found[4] else "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line's worth
