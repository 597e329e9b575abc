"""Time budget of the test suite: tests/budget.toml, the table of a run, the verdict at twice the budget. Pure functions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "budget.toml"
FACTOR = 2
"""A run fails where a folder takes more than this times its budget, and than that times the machine's slowness."""
SLOWEST = 25
LANES = 2
"""Folders of Python tests that run at the same time: one alone keeps half of two cores busy."""
NATIVE = "native/"
"""Before the kind of a native build, where a folder of tests/ might stand."""


ALONE = ("setup", "lint")
"""Names of a budget that are no folders of tests."""


@dataclass(frozen=True)
class Shard:
    """What ``make test-all SHARD=name`` runs: seconds of folders below tests/ and of native/KIND; extras and system packages it installs."""

    name: str
    seconds: Mapping[str, float]
    extras: tuple[str, ...] = ()
    system: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """Seconds on two idle cores."""

    default: Mapping[str, float]
    shards: Mapping[str, Shard]
    touches: Mapping[str, tuple[str, ...]]
    """Path prefix of a source -> folders or files below tests/ that a change of it runs first."""

    @property
    def whole(self) -> float:
        """Of the default tier, by the clock: its folders of Python tests run two at a time."""
        alone = {name: each for name, each in self.default.items() if name in ALONE or name.startswith(NATIVE)}
        beside = [each for name, each in self.default.items() if name not in alone]
        return sum(alone.values()) + max([sum(beside) / LANES, *beside])


@dataclass
class Folder:
    """What a run has seen of one folder, or of one native room."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    slowest: list[tuple[str, float]] = field(default_factory=list)

    @property
    def tests(self) -> int:
        """All that were run or skipped."""
        return self.passed + self.failed + self.skipped


def read(file: Path = FILE) -> Budget:
    """Read tests/budget.toml; raise ValueError naming what a shard lists and is not there."""
    table = tomllib.loads(file.read_text())
    shards = {
        name: Shard(
            name,
            {what: float(seconds) for what, seconds in each.items()},
            tuple(extra for what in each for extra in table.get("extras", {}).get(what, ())),
            tuple(word for what in each for word in table.get("system", {}).get(what, ())),
        )
        for name, each in table["shards"].items()
    }
    for shard in shards.values():
        for folder in shard.seconds:
            if not folder.startswith(NATIVE) and not (file.parent / folder).is_dir():
                raise ValueError(f"{file.name}: shard {shard.name} lists {folder}, which is not a folder of tests/")
    touches = {prefix: tuple(folders) for prefix, folders in table["touches"].items()}
    return Budget({name: float(seconds) for name, seconds in table["default"].items()}, shards, touches)


def parts(shard: Shard) -> list[Shard]:
    """A shard as shards of one folder or native kind each, which are named ``shard: folder``."""
    return [replace(shard, name=f"{shard.name}: {what}", seconds={what: each}) for what, each in shard.seconds.items()]


def over(folders: Iterable[Folder], budget: Mapping[str, float], slowness: float = 1.0) -> list[str]:
    """Sentences on folders that took more than twice their budget, or have none; ``slowness``: of this machine."""
    wrong = []
    for folder in folders:
        if folder.name not in budget:
            wrong.append(f"{folder.name} has no budget: give it a line in tests/budget.toml")
        elif folder.seconds > FACTOR * slowness * budget[folder.name]:
            here = f", on a machine {slowness:.1f} times as slow" if slowness > 1 else ""
            wrong.append(
                f"{folder.name} took {folder.seconds:.0f} s, more than twice its {budget[folder.name]:.0f} s{here}"
            )
    return wrong


def table(folders: Iterable[Folder], budget: Mapping[str, float]) -> str:
    """Folder | tests | seconds | budget, a line for each and a sum; Markdown."""
    found = list(folders)
    rows = [(each.name, each.tests, each.seconds, budget.get(each.name)) for each in found]
    known = [wanted for *_, wanted in rows if wanted is not None]
    rows.append(("sum", sum(each.tests for each in found), sum(each.seconds for each in found), sum(known)))
    width = max(len(name) for name, *_ in rows)
    lines = [f"| {'folder':<{width}} | tests | seconds | budget |", f"| {'-' * width} | ----: | ------: | -----: |"]
    lines += [
        f"| {name:<{width}} | {tests:5} | {seconds:7.1f} | {f'{wanted:6.0f}' if wanted is not None else '     -'} |"
        for name, tests, seconds, wanted in rows
    ]
    return "\n".join(lines)


def slowest(folders: Iterable[Folder], number: int = SLOWEST) -> list[tuple[str, float]]:
    """The tests that took longest, the longest first."""
    every = [test for folder in folders for test in folder.slowest]
    return sorted(every, key=lambda test: -test[1])[:number]
