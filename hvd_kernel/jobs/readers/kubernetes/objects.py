"""Kubernetes objects in a file: find the object of a kind, and check its name and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hvd_kernel.jobs import labels
from hvd_kernel.jobs.documents import Document, Path, parse_all
from hvd_kernel.jobs.spec import JobError


class Meta(msgspec.Struct):
    """The part of an object's metadata that names a job."""

    name: str = ""
    generateName: str = ""  # noqa: N815 - Kubernetes' name


class Manifest(msgspec.Struct, kw_only=True):
    """Common fields of all objects; each kind adds its ``spec``."""

    apiVersion: str  # noqa: N815
    kind: str
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: Any = None


def matcher(kind: str) -> Callable[[str, str], bool]:
    """Return a function that matches files with a top-level object of a kind."""
    line = re.compile(rf"^[\"'{{]*kind[\"']?[ \t]*:[ \t]*[\"']?{kind}[\"']?[ \t]*(?:[,#}}].*)?$", re.MULTILINE)
    version = re.compile(r"\bapiVersion[\"']?[ \t]*:")
    return lambda text, _name: line.search(text) is not None and version.search(text) is not None


def only(text: str, name: str, kind: str, version: str) -> Document:
    """Return the object of a kind.

    Raises
    ------
    JobError
        The file does not have exactly one object of the kind, or its version is not supported.
    """
    documents = [doc for doc in parse_all(text, name) if isinstance(doc.value, dict) and doc.value.get("kind") == kind]
    if len(documents) != 1:
        raise JobError(
            f"{name}: one object of kind {kind} is expected, but there are {len(documents)}: split the file."
        )
    document = documents[0]
    if document.value.get("apiVersion") != version:
        actual = document.value.get("apiVersion")
        raise document.error(("apiVersion",), f"{actual!r} is not known for kind {kind}: it must be {version}")
    return document


def called(document: Document, meta: Meta, last: str, kind: str) -> str:
    """Return an object's name.

    Raises
    ------
    JobError
        The name with suffix ``last`` is not a valid name of a pod.
    """
    name = meta.name or meta.generateName.rstrip("-")
    problem = labels.wrong(name, last, kind) if name else "is missing: the pods are called by it"
    if problem:
        raise document.error(("metadata", "name"), problem)
    return name


def one_of(document: Document, path: Path, value: str | None, allowed: Sequence[str]) -> None:
    """Check a field with a fixed set of values; None stands for a missing field.

    Raises
    ------
    JobError
        The value is not allowed.
    """
    if value is not None and value not in allowed:
        raise document.error(path, f"{value!r} is not known: it must be one of {', '.join(allowed)}")
