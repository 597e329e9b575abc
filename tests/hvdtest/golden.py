"""Golden tables: a JSON file of titled cases, each with inputs and its exact result as ``expected``.

``HVD_WRITE_GOLDEN=1`` replaces the results by the actual ones; review the difference before you commit it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

Case = dict[str, Any]
_WIDTH = 160


def titles(*tables: Path) -> pytest.MarkDecorator:
    """Parametrize ``table`` and ``title``: one test for each title of each table."""
    rows = [(table, title) for table in tables for title in json.loads(table.read_text())]
    return pytest.mark.parametrize(("table", "title"), rows, ids=[f"{table.stem}: {title}" for table, title in rows])


def check(table: Path, title: str, result: Callable[[Case], object]) -> None:
    """Compare the result of each case under a title with the table's; ``texts`` are inputs with the same result."""
    cases: dict[str, list[Case]] = json.loads(table.read_text())
    actual = [case | {"expected": _common([result(one) for one in _inputs(case)])} for case in cases[title]]
    if os.environ.get("HVD_WRITE_GOLDEN") == "1":
        table.write_text(_dumps(cases | {title: actual}) + "\n")
        return
    assert actual == cases[title], f"{title} of {table}"


def text_of(case: Case, *folders: Path) -> str:
    """Return the text of a case (a string or a list of lines), or of its file, with its replacements."""
    text = case["text"] if "text" in case else path_of(case["file"], *folders).read_text()
    text = text if isinstance(text, str) else "\n".join(text) + "\n"
    for old, new in case.get("replace", {}).items():
        assert text.count(old) == 1, "the change is made in one place"
        text = text.replace(old, new)
    return text


def path_of(name: str, *folders: Path) -> Path:
    """Return the path of a case's file in the first folder that has it."""
    return next(folder / name for folder in folders if (folder / name).exists())


def without_defaults(value: object) -> object:
    """Return a dataclass as a dictionary of its fields that differ from their defaults, nested ones too."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    rows = [(field, getattr(value, field.name)) for field in fields(value)]
    return {field.name: without_defaults(item) for field, item in rows if item != _default(field)}


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _inputs(case: Case) -> list[Case]:
    return [case | {"text": text} for text in case["texts"]] if "texts" in case else [case]


def _common(results: list[object]) -> object:
    values = [json.loads(msgspec.json.encode(result)) for result in results]
    return values[0] if all(value == values[0] for value in values) else values


def _dumps(value: object, indent: int = 0) -> str:
    """Return JSON in which each value that fits is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or (indent and len(line) + indent <= _WIDTH):
        return line
    if isinstance(value, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {_dumps(item, indent + 1)}" for key, item in value.items()]
    else:
        rows = [_dumps(item, indent + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    pad = "\n" + " " * indent
    return opening + ",".join(f"{pad} {row}" for row in rows) + pad + closing
