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
"""Longest time that pytest needs to fail a test after its limit."""


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the entries of a record; an incomplete last line of a killed process is ignored."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def folder_of(name: str, entries: list[dict[str, Any]]) -> Folder:
    """Return the result of a folder of pytest, with the sum of the tests' seconds (the runner sets the total time)."""
    folder = Folder(name)
    ended = {line["test"]: line for line in entries if "test" in line}
    for test, line in ended.items():
        outcome = line["outcome"]
        folder.passed += outcome == "passed"
        folder.failed += outcome == "failed"
        folder.skipped += outcome == "skipped"
        folder.seconds += line["seconds"]
        folder.slowest.append((test, line["seconds"]))
    folder.slowest = sorted(folder.slowest, key=lambda test: -test[1])[:SLOWEST]
    return folder


def native_folders(entries: list[dict[str, Any]]) -> list[Folder]:
    """Return the results of native rooms, each the sum over the kinds of builds."""
    rooms: dict[str, Folder] = {}
    for line in entries:
        room = rooms.setdefault(line["folder"], Folder(line["folder"]))
        room.seconds += line["seconds"]
        room.failed += line["failed"]
        room.passed += line["tests"] - line["failed"]
        room.slowest += [(f"{line['folder']} ({line['kind']}): {name}", took) for name, took in line["slowest"]]
    return list(rooms.values())


def begun_not_ended(entries: list[dict[str, Any]]) -> list[str]:
    """Return the tests that were running when the record ends: at most one per process of pytest-xdist."""
    ended = {line["test"] for line in entries if "test" in line}
    return list(dict.fromkeys(line["begins"] for line in entries if "begins" in line and line["begins"] not in ended))


def patience(entries: list[dict[str, Any]], silent: float) -> float:
    """Return the seconds that a run may be silent: more if a running test has a longer limit of its own."""
    at_work = set(begun_not_ended(entries))
    return max([silent, *(line["may_take"] + MARGIN_S for line in entries if line.get("which") in at_work)])
