"""YAML documents with the line and column of every value, for error messages.

Terms.
  path   the keys and indices of a value: ("environment", "replicas", "n_workers")
  model  a msgspec.Struct that defines the fields and their types
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Mapping
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
    """A parsed file, with the positions of its values."""

    name: str
    value: Any = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def error(self, path: Path, message: str) -> JobError:
        """Return an error with the position of the value at a path, or of its nearest existing parent."""
        near = next(path[:n] for n in range(len(path), -1, -1) if path[:n] in self.marks or n == 0)
        line, column = self.marks.get(near, (1, 1))
        named = f"{'.'.join(map(str, path))}: " if path else ""
        return JobError(f"{self.name}:{line}:{column}: {named}{message.rstrip('.')}.")

    def convert(self, model: type[Model], path: Path = ()) -> Model:
        """Return the value at a path as a model.

        Raises
        ------
        JobError
            A field is unknown, missing or of another type; the message has what is allowed.
        """
        value = self.value
        for step in path:
            value = value[step]
        if not isinstance(value, dict):
            raise self.error(path, f"must be a mapping of names to values, not {_shown(value)}")
        try:
            return msgspec.convert(value, model)
        except msgspec.ValidationError as error:
            raise self._error_of(str(error), model, path) from None

    def _error_of(self, text: str, model: type, path: Path) -> JobError:
        """Convert the message of a msgspec error for a value at a path."""
        match = _AT.fullmatch(text)
        message, below = (match["what"], _steps(match["path"])) if match else (text, ())
        if missing := _MISSING.fullmatch(message):
            return self.error((*path, *below, missing[1]), "is missing")
        unknown = _UNKNOWN.fullmatch(message)
        if not unknown:
            return self.error(path + below, _plain(message))
        allowed = _fields(model, below)
        near = difflib.get_close_matches(unknown[1], allowed, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return self.error((*path, *below, unknown[1]), f"is unknown here: {hint}allowed: {', '.join(allowed)}")


def parse(text: str, name: str) -> Document:
    """Parse a YAML document; a line of three dots, an ellipsis in documentation, is ignored.

    Raises
    ------
    JobError
        The text is not YAML, is too large, or has a duplicate key.
    """
    root = _nodes(_LEFT_OUT.sub(r"\1#..", text), name, yaml.compose)  # a comment of the same length
    return _document(root, name)


def parse_all(text: str, name: str) -> list[Document]:
    """Parse the YAML documents of a file, separated by ``---`` as for kubectl, without empty ones.

    Raises
    ------
    JobError
        See ``parse``.
    """
    nodes = _nodes(text, name, lambda text, Loader: list(yaml.compose_all(text, Loader)))  # noqa: N803 - PyYAML's name
    documents = [_document(node, name) for node in nodes if not _is_empty(node)]
    return documents or [_document(None, name)]


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
    """Reject text with too many values or levels; libyaml's composer crashes the process on deep nesting."""
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
    """Return a sentence for each ignored field of a file; the description of the field's type is the reason."""
    if model is None:
        return []
    sentences = []
    for name, reason in ignore_reasons(type(model)).items():
        if getattr(model, name) is not None:
            sentences.append(f"{'.'.join(map(str, (*path, name)))} is ignored: {reason}")
    return sentences


@functools.cache
def ignore_reasons(model: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the ignored fields of a model, each with the reason: the description of its type."""
    hints = typing.get_type_hints(model, include_extras=True)
    metas = ((name, next(iter(getattr(hint, "__metadata__", ())), None)) for name, hint in hints.items())
    return {name: meta.description for name, meta in metas if isinstance(meta, msgspec.Meta) and meta.description}


def _value(node: yaml.Node, path: Path, document: Document) -> Any:
    document.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if len(document.marks) > MAX_VALUES or len(path) > MAX_DEPTH:
        raise document.error((), f"more than {MAX_VALUES} values, or {MAX_DEPTH} levels: aliases multiply them")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), document) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    return _scalar(node, path, document)


def _mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise document.error(path, "must be a name with a value")
        if key.value in mapping:
            line = document.marks[*path, key.value][0]
            raise document.error((*path, key.value), f"appears twice, in lines {line} and {key.start_mark.line + 1}")
        mapping[key.value] = _value(value, (*path, key.value), document)
    return mapping


def _scalar(node: yaml.Node, path: Path, document: Document) -> Any:
    if node.tag in _TEXTS:
        return node.value
    if node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:  # 1:1:1:... is a number in YAML, and slow to parse
        raise document.error(path, f"{_shown(node.value)} is too long for {node.tag}")
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        raise document.error(path, f"{_shown(node.value)} cannot be read as {node.tag}") from None


def _steps(text: str) -> Path:
    """Return the path of ``.a.b[0]``, up to the first step that msgspec does not name."""
    steps: list[str | int] = []
    for name, number in _PATH.findall(text):
        if number == "...":
            break
        steps.append(int(number) if number else name)
    return tuple(steps)


def _fields(model: Any, path: Path) -> list[str]:
    """Return the field names of the model at a path below a model."""
    for step in path:
        hints = typing.get_type_hints(_struct(model)) if isinstance(step, str) else {}
        renamed = dict(zip(_struct(model).__struct_encode_fields__, _struct(model).__struct_fields__, strict=True))
        model = hints[renamed[str(step)]] if hints else typing.get_args(model)[0]
    return sorted(_struct(model).__struct_encode_fields__)


def _struct(model: Any) -> Any:
    """Return the first struct in ``Struct``, ``Struct | None`` or ``list[Struct]``."""
    if isinstance(model, types.UnionType) or typing.get_origin(model) is not None:
        return next(struct for struct in map(_struct, typing.get_args(model)) if struct is not None)
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


def _plain(text: str) -> str:
    """Return msgspec's message about a type in plain words: "must be a whole number, not text"."""
    match = _EXPECTED.fullmatch(text)
    if not match:
        return text
    expected = " or ".join(_WORDS.get(name, name) for name in match[1].split(" | ") if name != "null")
    bound = f", {match[2]} {match[3]}" if match[2] else ""
    return f"must be {expected}{bound}" + (f", not {_WORDS.get(match[4], match[4])}" if match[4] else "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - fits on a line
