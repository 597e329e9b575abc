"""Tests of a change: changed files -> test paths and shards, by the table [touches] of tests/budget.toml."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from suite.budget import ROOT, Budget
from suite.phases import shard_of

SESSION_S = 4 * 3600
"""A change lands as one push of several commits: the base is the newest commit that is older than this before HEAD."""


def tests_of(files: Iterable[str], budget: Budget) -> list[str]:
    """Paths below tests/ for changed files, each once: changed tests first, then what the longest prefix in the table names."""
    changed = sorted(files)
    own = [name.removeprefix("tests/") for name in changed if _is_test(name)]
    named = ["/".join(Path(name).parts[1:3]) for name in changed if _is_native_test(name)]
    for name in changed:
        prefixes = [prefix for prefix in budget.touches if name == prefix or name.startswith(f"{prefix}/")]
        if prefixes:
            named += budget.touches[max(prefixes, key=len)]
    return list(dict.fromkeys([*own, *named]))


def shards_of(files: Iterable[str], budget: Budget) -> list[str]:
    """Shards for changed files, the native one first."""
    paths = [*tests_of(files, budget), *(name.removeprefix("tests/") for name in files if name.startswith("tests/"))]
    found = {shard_of(path, budget) for path in paths} - {None}
    return [name for name in budget.shards if name in found]


def _is_test(name: str) -> bool:
    path = Path(name)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def _is_native_test(name: str) -> bool:
    """Of a room with a binary of its own: not a fake that several of them use."""
    path = Path(name)
    return path.parts[:2] == ("tests", "native") and path.name.startswith("test_") and len(path.parts) > 3


def _git(*args: str) -> list[str]:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def head() -> str:
    """The commit that is checked out; a working tree that differs from it counts as another."""
    return _git("rev-parse", "HEAD")[0] + ("+" if _git("status", "--porcelain") else "")


def base() -> str:
    """The commit before the change that HEAD ends."""
    at = int(_git("log", "-1", "--format=%ct", "HEAD")[0])
    older = _git("rev-list", "-1", f"--before={at - SESSION_S}", "HEAD")
    return older[0] if older else _git("rev-list", "--max-parents=0", "HEAD")[-1]


def changed_files(since: str) -> list[str]:
    """Files that differ between a commit and the working tree, and new ones that git does not ignore."""
    differ = _git("diff", "--name-only", "--diff-filter=d", since)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})
