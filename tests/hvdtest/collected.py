"""List the tests and their tiers as pytest and doctest collect them, not from the text of test files.

python -m hvdtest.collected ANSWER FILE...     collects these files, writes {node id: tier} as JSON to ANSWER
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hvdtest.offenders import ROOT

DEFAULT, NIGHTLY, SKIPPED = "default", "nightly", "skipped"
UNUSED = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:nbval",
    "-p",
    "no:anyio",
    "-p",
    "no:hypothesispytest",
)  # nbval takes seconds to load
TESTS = ROOT / "tests"
ON_REQUEST = r"skip\(\)|skip\(true\)"
LATER = (
    r'test_suite\("nightly"\)|skip\(test::kSanitized\)'  # the default tier runs most rooms under AddressSanitizer alone
)
DEFAULT_BUILDS = ("editable", "native-plain", "native-asan")  # ThreadSanitizer's leave cases out, by #ifndef
CASE = re.compile(r"^TEST_CASE(?:_TEMPLATE)?\(\s*(?P<name>(?:\"(?:[^\"\\]|\\.)*\"\s*)+)(?P<rest>[^{]*)\{", re.MULTILINE)


def tier(item: pytest.Item) -> str:
    """Return the tier of a test, as tools/suite/phases.py selects it; a condition that is text counts as met."""
    skips = [True for _ in item.iter_markers("skip")]
    skips += [any(mark.args) or bool(mark.kwargs.get("condition")) for mark in item.iter_markers("skipif")]
    if item.get_closest_marker("gpu") is not None or any(skips):
        return SKIPPED
    return NIGHTLY if item.get_closest_marker("nightly") is not None else DEFAULT


class Collector:
    """A plugin that records the tests that pytest would run."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.found[item.nodeid] = tier(item)


def python_tests(files: Iterable[str], answer: Path) -> dict[str, str]:
    """Node id -> tier of the tests in these files (paths from the root), as a process of its own collects them."""
    command = [sys.executable, "-P", "-m", "hvdtest.collected", str(answer), *files]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=own | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(answer.read_text()))


@dataclass(frozen=True)
class Case:
    """A doctest case; its id is that of a test in Python: file::name."""

    room: str
    file: str
    name: str
    tier: str

    @property
    def nodeid(self) -> str:
        return f"{self.file}::{self.name}"


def native_sources() -> dict[str, list[Path]]:
    """Room -> the test files that CMake builds into its binary: those of its patterns in tests/native/CMakeLists.txt."""
    script = re.sub(r"#.*", "", (TESTS / "native" / "CMakeLists.txt").read_text())
    for rooms in re.finditer(r"foreach\(room ([\w ]+)\)(.*?)endforeach\(\)", script, re.DOTALL):
        script += "".join(rooms[2].replace("${room}", room) for room in rooms[1].split())
    found: dict[str, set[Path]] = {}
    for pattern in re.findall(r"(?<![\w$}{])[\w/]+(?:/\*)?[\w*]*\.cc\b", script):
        for path in (TESTS / "native").glob(pattern.replace("/*", "/**/*")):
            found.setdefault(path.relative_to(TESTS / "native").parts[0], set()).add(path)
    return {room: sorted(paths) for room, paths in found.items()}


def cases(path: Path, room: str, *, budgeted: bool) -> Iterable[Case]:
    for match in CASE.finditer(path.read_text()):
        name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match["name"])).replace('\\"', '"')
        where = NIGHTLY if re.search(LATER, match["rest"]) else DEFAULT
        where = SKIPPED if re.search(ON_REQUEST, match["rest"]) or not budgeted else where
        yield Case(room, str(path.relative_to(ROOT)), name, where)


def native_tests() -> list[Case]:
    """Cases in the sources of every room; the default tier has the rooms of tests/budget.toml."""
    budget = tomllib.loads((TESTS / "budget.toml").read_text())["default"]
    return [
        case
        for room, paths in native_sources().items()
        for path in paths
        for case in cases(path, room_of(path, room), budgeted=f"native/{room}" in budget)
    ]


def room_of(path: Path, folder: str) -> str:
    """Return the folder whose binary runs a case: tests of a process that has loaded NCCL have their own."""
    return "nccl" if path.parent.name == "nccl" else folder


def newest_binary(room: str) -> Path | None:
    """A binary of a room's tests that the default tier runs and that is newer than all of their sources."""
    builds = [ROOT / "build" / build for build in DEFAULT_BUILDS]
    built = [path for build in builds for path in build.rglob(f"{room}_tests") if path.is_file()]
    folder = TESTS / "native" / ("cuda" if room == "nccl" else room)
    changed = max((path.stat().st_mtime for path in folder.rglob("*")), default=0.0)
    fresh = [path for path in built if os.access(path, os.X_OK) and path.stat().st_mtime > changed]
    return max(fresh, key=lambda path: path.stat().st_mtime, default=None)


def listed(binary: Path) -> set[str] | None:
    """Names of the cases that a binary runs in the default tier, of a template without its type; None: it is being built."""
    command = [str(binary), "--list-test-cases", "--test-suite-exclude=nightly", "--no-version=true"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {re.sub(r"<[^<>]*>$", "", line) for line in said.splitlines() if not line.startswith(("[doctest]", "==="))}


if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # what nbformat does not need costs two seconds to load
    collector = Collector()
    status = pytest.main(["--collect-only", "-qq", *UNUSED, *sys.argv[2:]], plugins=[collector])
    Path(sys.argv[1]).write_text(json.dumps(collector.found))
    sys.exit(status)
