"""The page's modules (widgets/js) under Node.js: their own tests, and the tables that they share with Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from hvdtest.node import MODULES, evaluate, needs_node, node

from hvd_kernel.formatting import units
from hvd_kernel.protocol.messages import GPU_FIGURES
from hvd_kernel.protocol.operations import Operation
from hvd_kernel.widgets import board, definitions, picture, series

TESTS = sorted((Path(__file__).parents[1] / "js").glob("*.test.mjs"))
MAX_LINES = 200


@needs_node
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_modules_pass_their_own_tests(path: Path) -> None:
    node("--test", str(path))


def test_no_module_is_longer_than_200_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in MODULES.rglob("*.js")}
    assert lines
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


@needs_node
def test_messages_are_the_same_in_python_and_in_the_page() -> None:
    tables = "return {ROW, GPU, MARK, RATES, DEFINITIONS, OPERATION, FEW, MAX_LINES, MAX_LOGGED, STATES, ENDED_BADLY: [...ENDED_BADLY].sort()};"
    names = ("ROW", "GPU", "MARK", "RATES", "FEW", "MAX_LINES", "MAX_LOGGED", "STATES", "ENDED_BADLY")
    page = evaluate(tables, OPERATION="lanes/model", DEFINITIONS="definitions", **dict.fromkeys(names, "messages"))
    renamed = {"samples_per_s": "speed"}
    assert page == {
        "ROW": {camel(renamed.get(name, name)): i for i, name in enumerate(board.Row._fields)},
        "GPU": {camel(name): i for i, name in enumerate(GPU_FIGURES)},
        "MARK": {name: i for i, name in enumerate(board.Mark._fields)},
        "OPERATION": {name: i for i, name in enumerate((*Operation._fields, "late", "waited"))},
        "FEW": series.FEW,
        "RATES": [definitions.SAMPLES, definitions.BUS, definitions.COMM],
        "DEFINITIONS": definitions.DEFINITIONS,
        "MAX_LINES": board.MAX_LINES,
        "MAX_LOGGED": picture.MAX_LOGGED,
        "STATES": picture.STATES,
        "ENDED_BADLY": sorted(picture.ENDED_BADLY),
    }


@needs_node
def test_rank_colours_match_in_panel_and_picture() -> None:
    counts = [1, 8, 9, 64, 300]
    page = evaluate(
        "return data.map(n => Array.from({length: n}, (_, i) => rankColour(i, n)))", counts, rankColour="colours"
    )
    drawn = [[picture.colour(i, count).replace(",", " ") for i in range(count)] for count in counts]
    assert page == drawn


@needs_node
def test_mark_colours_match_in_panel_and_picture() -> None:
    kinds = list(get_args(board.Kind))
    assert evaluate("return data.map(markColour)", kinds, markColour="colours") == [
        picture.MARKS[kind] for kind in kinds
    ]


def camel(name: str) -> str:
    """samples_per_s -> samplesPerS"""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# Numbers and units as the table has them; tests/unit/js/units.test.mjs holds the browser's to the same table.

TABLE = json.loads((Path(__file__).parents[1] / "js" / "units.json").read_text())
UNITS = {
    "number": units.number,
    "metric": units.metric,
    "percent": units.percent,
    "multiple": units.multiple,
    "size": units.decimal_size,
    "rate": units.rate_of,
    "duration": units.duration,
}


@pytest.mark.parametrize("name", sorted({*TABLE, *UNITS}))
def test_units_format_as_in_the_table(name: str) -> None:
    said = [[*row[:-1], UNITS[name](*row[:-1])] for row in TABLE[name]]
    assert said == TABLE[name]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_numbers_are_a_dash(value: float) -> None:
    """JSON has no such number, so the browser gets none."""
    assert units.number(value) == units.NONE


# What our own scripts may do in a page (row S10): they make no markup of text, and send no requests.

SCRIPTS = sorted((Path(__file__).parents[3] / "widgets" / "js").rglob("*.js"))
MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\b|createContextualFragment|DOMParser"
)
REACHES = r"\bfetch\b|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|https?://|\.src\b|\.href\b"
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
"""The XML namespace of a saved picture: a name that is never requested."""

ATTRIBUTES = {"name", '"aria-pressed"', '"aria-label"'}


def test_s10_page_scripts_make_no_markup_and_no_requests() -> None:
    assert SCRIPTS
    assert {path.name: found for path in SCRIPTS if (found := offences(path))} == {}


def offences(path: Path) -> list[str]:
    code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    code = code.replace(NAMESPACE, "")
    attributes = set(re.findall(r"setAttribute\(([^,]+),", code)) - ATTRIBUTES
    return [*re.findall(MARKUP, code), *re.findall(REACHES, code), *sorted(attributes)]
