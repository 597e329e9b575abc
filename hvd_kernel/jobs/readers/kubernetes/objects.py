"""Kubernetes objects of a file: the one of a kind, its name, and the rules that its names must keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hvd_kernel.jobs import labels
from hvd_kernel.jobs.documents import Document, Path, parse_all
from hvd_kernel.jobs.spec import JobError


class Meta(msgspec.Struct):
    """An object's metadata, as far as it says what a job is called."""

    name: str = ""
    generateName: str = ""  # noqa: N815 - its name there


class Manifest(msgspec.Struct, kw_only=True):
    """What every object's file has beside its ``spec``, which each kind adds."""

    apiVersion: str  # noqa: N815
    kind: str
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: Any = None


def looks(kind: str) -> Callable[[str, str], bool]:
    """Return a function that tells whether a file has an object of a kind at its top."""
    line = re.compile(rf"^[\"'{{]*kind[\"']?[ \t]*:[ \t]*[\"']?{kind}[\"']?[ \t]*(?:[,#}}].*)?$", re.MULTILINE)
    version = re.compile(r"\bapiVersion[\"']?[ \t]*:")
    return lambda text, _name: line.search(text) is not None and version.search(text) is not None


def only(text: str, name: str, kind: str, version: str) -> Document:
    """Return the object of a kind.

    Raises
    ------
    JobError
        There is none or another, or it is of another version.
    """
    found = [each for each in parse_all(text, name) if isinstance(each.value, dict) and each.value.get("kind") == kind]
    if len(found) != 1:
        raise JobError(f"{name}: one object of kind {kind} is expected, but there are {len(found)}: split the file.")
    document = found[0]
    if document.value.get("apiVersion") != version:
        said = document.value.get("apiVersion")
        raise document.error(("apiVersion",), f"{said!r} is not known for kind {kind}: it must be {version}")
    return document


def called(document: Document, meta: Meta, last: str, kind: str) -> str:
    """Return an object's name.

    Raises
    ------
    JobError
        With ``last`` at its end it is not a pod's name.
    """
    name = meta.name or meta.generateName.rstrip("-")
    wrong = labels.wrong(name, last, kind) if name else "is missing: the pods are called by it"
    if wrong:
        raise document.error(("metadata", "name"), wrong)
    return name


def one_of(document: Document, path: Path, value: str | None, allowed: Sequence[str]) -> None:
    """Check a field of which only some values are known; None: it is not said.

    Raises
    ------
    JobError
        It is another.
    """
    if value is not None and value not in allowed:
        raise document.error(path, f"{value!r} is not known: it must be one of {', '.join(allowed)}")
