"""Phases of a tier or shard, and the phases of a change.

A phase is lint, native builds with their tests, or one pytest process per folder. The tests of a change follow from its
files by the table [touches] of tests/budget.toml.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.budget import NATIVE as NATIVE_KIND
from suite.budget import ROOT, Budget, Shard

PYTEST = (".venv/bin/python", "-P", "-m", "pytest", "-q")
EXTRAS = "build/extras/bin/python"
"""Python of the copy of .venv that .ci/extras makes, so that a shard's extras do not affect other tests."""
PARALLEL = dict.fromkeys(("unit", "platforms"), ("-n", "2", "--dist", "loadfile"))
"""Folders whose files are independent: two processes per folder."""
DEFAULT_TIER = ("-m", "not nightly")
FOLDERS = (
    "unit",
    "jupyter",
    "faults",
    "multiprocess",
    "frameworks",
    "platforms",
    "browser",
    "notebooks",
    "elastic",
    "gpu",
    "spark",
    "on_ray",
    "docs",
)
"""Slow folders come first, as two run at a time."""
NATIVE = ("asan", "plain")
"""Kinds of native builds in the default tier; .ci/native selects the rooms of each."""


@dataclass(frozen=True)
class Phase:
    """A command of a run.

    ``pytest``: it writes a record of its tests, and can be continued without the completed ones. ``beside``: it leaves cores
    idle, and another such phase may run at the same time.
    """

    name: str
    command: tuple[str, ...]
    pytest: bool = False
    beside: bool = False


def pytest_of(folder: str, more: Sequence[str] = (), python: str = PYTEST[0]) -> Phase:
    """Return the phase of a folder of tests/."""
    command = (python, *PYTEST[1:], *PARALLEL.get(folder, ()), *more, f"tests/{folder}")
    return Phase(folder, command, pytest=True, beside=True)


def native(kind: str, tier: str) -> Phase:
    """Return the phase of the native tests with one kind of instrumentation, or of builds with all installed compilers."""
    if kind == "compilers":
        return Phase("native/compilers", ("bash", ".ci/compilers"))
    return Phase(f"native/{kind}", ("bash", ".ci/native", kind, tier))


def default_tier(only: Iterable[str] = ()) -> list[Phase]:
    """Return the phases of ``make test``, or those of the folders ``only``."""
    phases = [Phase("lint", ("bash", ".ci/lint"))]
    phases += [native(kind, "default") for kind in NATIVE]
    phases += [pytest_of(folder, DEFAULT_TIER) for folder in FOLDERS]
    chosen = set(only)
    return [phase for phase in phases if not chosen or phase.name.split("/")[0] in chosen]


def shard(which: Shard) -> list[Phase]:
    """Return the phases of a shard: all tests of its folders, including the nightly ones."""
    python = EXTRAS if which.extras else PYTEST[0]
    return [
        native(folder.removeprefix(NATIVE_KIND), "all")
        if folder.startswith(NATIVE_KIND)
        else pytest_of(folder, python=python)
        for folder in which.seconds
    ]


def shard_of(path: str, budget: Budget) -> str | None:
    """Return the shard that runs a file or folder of tests/, or None."""
    for name, shard in budget.shards.items():
        if any(path == folder or path.startswith(f"{folder}/") for folder in shard.seconds):
            return name
    return "native" if path.startswith("native/") else None


SESSION_S = 4 * 3600
"""A change is one push of several commits: its base is the newest commit that is older than HEAD by this."""


def tests_of(files: Iterable[str], budget: Budget) -> list[str]:
    """Return paths of tests/ for changed files, each once: changed tests first, then those of the longest prefix in the table."""
    changed = sorted(files)
    changed_tests = [name.removeprefix("tests/") for name in changed if _is_test(name)]
    named = ["/".join(Path(name).parts[1:3]) for name in changed if _is_native_test(name)]
    for name in changed:
        prefixes = [prefix for prefix in budget.touches if name == prefix or name.startswith(f"{prefix}/")]
        if prefixes:
            named += budget.touches[max(prefixes, key=len)]
    return list(dict.fromkeys([*changed_tests, *named]))


def shards_of(files: Iterable[str], budget: Budget) -> list[str]:
    """Return the shards of changed files, the native one first."""
    paths = [*tests_of(files, budget), *(name.removeprefix("tests/") for name in files if name.startswith("tests/"))]
    shards = {shard_of(path, budget) for path in paths} - {None}
    return [name for name in budget.shards if name in shards]


def _is_test(name: str) -> bool:
    path = Path(name)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def _is_native_test(name: str) -> bool:
    """Return whether a file is a test of a native room, not a fake that several rooms share."""
    path = Path(name)
    return path.parts[:2] == ("tests", "native") and path.name.startswith("test_") and len(path.parts) > 3


def _git(*args: str) -> list[str]:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def head() -> str:
    """Return the checked-out commit, with a plus if the working tree differs from it."""
    return _git("rev-parse", "HEAD")[0] + ("+" if _git("status", "--porcelain") else "")


def base() -> str:
    """Return the commit before the change whose last commit is HEAD."""
    at = int(_git("log", "-1", "--format=%ct", "HEAD")[0])
    older = _git("rev-list", "-1", f"--before={at - SESSION_S}", "HEAD")
    return older[0] if older else _git("rev-list", "--max-parents=0", "HEAD")[-1]


def changed_files(since: str) -> list[str]:
    """Return files that differ between a commit and the working tree, and new files that git does not ignore."""
    differ = _git("diff", "--name-only", "--diff-filter=d", since)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})
