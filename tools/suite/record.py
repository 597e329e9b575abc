"""Records of a run: one JSON line per test or native room, read back as folders.

A line of pytest (tests/hvdtest/record.py): {"folder", "test", "seconds", "outcome"}, before each {"folder", "begins"},
and where it has a time limit of its own {"folder", "which", "may_take"}.
A line of a native room (.ci/native): {"folder", "kind", "tests", "seconds", "failed", "slowest"}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite.budget import SLOWEST, Folder

MARGIN_S = 120
"""What pytest needs, at most, to fail a test whose limit is over."""


def lines(file: Path) -> list[dict[str, Any]]:
    """Whole lines only: a process that was killed may have left half of one."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def folder_of(name: str, found: list[dict[str, Any]]) -> Folder:
    """One folder of pytest, its seconds those of its tests (the runner puts the whole time there)."""
    folder = Folder(name)
    ended = {line["test"]: line for line in found if "test" in line}
    for test, line in ended.items():
        outcome = line["outcome"]
        folder.passed += outcome == "passed"
        folder.failed += outcome == "failed"
        folder.skipped += outcome == "skipped"
        folder.seconds += line["seconds"]
        folder.slowest.append((test, line["seconds"]))
    folder.slowest = sorted(folder.slowest, key=lambda test: -test[1])[:SLOWEST]
    return folder


def native_folders(found: list[dict[str, Any]]) -> list[Folder]:
    """Native rooms, each the sum of the kinds of builds that it ran in."""
    rooms: dict[str, Folder] = {}
    for line in found:
        room = rooms.setdefault(line["folder"], Folder(line["folder"]))
        room.seconds += line["seconds"]
        room.failed += line["failed"]
        room.passed += line["tests"] - line["failed"]
        room.slowest += [(f"{line['folder']} ({line['kind']}): {name}", took) for name, took in line["slowest"]]
    return list(rooms.values())


def begun_not_ended(found: list[dict[str, Any]]) -> list[str]:
    """The tests in which a run stopped: one, or one for each of pytest-xdist's processes."""
    ended = {line["test"] for line in found if "test" in line}
    return list(dict.fromkeys(line["begins"] for line in found if "begins" in line and line["begins"] not in ended))


def patience(found: list[dict[str, Any]], silent: float) -> float:
    """How many seconds a run may be silent: longer where a test that is at work has a longer limit of its own."""
    at_work = set(begun_not_ended(found))
    return max([silent, *(line["may_take"] + MARGIN_S for line in found if line.get("which") in at_work)])
