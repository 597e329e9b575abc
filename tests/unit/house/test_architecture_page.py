"""docs/architecture.md matches the tree: its picture is drawn from the imports, its call paths name existing functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest import rooms
from hvdtest.offenders import ROOT, assert_kept, text

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"`((?:hvd_kernel|native|magics|widgets)/[\w./]+\.\w+):(\w+)`")
DEFINED = r"(?:\b(?:def|class|struct|function) {0}\b|\b{0}\(|^{0}\b.* = )"
"""In Python, JavaScript or C++: a function, a class, a method, or a table."""


def missing_names(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text(page).splitlines(), 1):
        for file, name in PLACE.findall(line):
            if not re.search(DEFINED.format(name), text(ROOT / file), re.MULTILINE):
                yield number, f"{file} defines no {name}"


def test_the_picture_is_that_of_the_imports() -> None:
    found = PICTURE.search(text(PAGE))
    assert found, "the page has no picture"
    assert found[1] == rooms.mermaid(), "put in what `PYTHONPATH=tests .venv/bin/python -m hvdtest.rooms` prints"


def test_call_paths_name_existing_functions() -> None:
    assert len(PLACE.findall(text(PAGE))) > 20
    assert_kept("functions that the page names exist", [PAGE], missing_names)


def test_missing_name_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`magics/cell_view.py:check` and `magics/cell_view.py:gone`\n")
    assert list(missing_names(page)) == [(1, "magics/cell_view.py defines no gone")]


def test_every_folder_is_in_the_picture_or_excluded_by_reason() -> None:
    shown = [room for floor in rooms.FLOORS.values() for room in floor]
    assert len(shown) == len(set(shown))
    assert set(rooms.edges()) == set(shown) | rooms.EVERYWHERE | rooms.ASIDE


def test_no_arrow_points_up() -> None:
    order = {room: number for number, floor in enumerate(rooms.FLOORS.values()) for room in floor}
    arrows = [(a, b) for a, others in rooms.edges().items() for b in others if a in order and b in order]
    assert not [(a, b) for a, b in arrows if order[a] > order[b]]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, {"a": {"b"}, "b": {"c"}, "c": set()}),
        ({"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}, {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}),
    ],
)
def test_transitive_arrows_are_omitted(graph: rooms.Edges, expected: rooms.Edges) -> None:
    assert rooms.reduced(graph) == expected


def test_rooms_that_import_each_other_are_one_node() -> None:
    assert rooms.merged({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"a": {"b + c"}, "b + c": set()}
