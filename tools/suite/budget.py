"""Time budget of the test suite: tests/budget.toml, the table of a run, the verdict at twice the budget.

The speed of this machine is that of a fixed loop of Python, beside the machine on which the budget was measured: a slower
machine gets more seconds, at most twice as many; a faster one no fewer.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "budget.toml"
FACTOR = 2
"""A run fails if a folder takes more than this times its budget, times the machine's slowness."""
SLOWEST = 25
LANES = 2
"""Folders of Python tests that run at the same time: one alone keeps half of two cores busy."""
NATIVE = "native/"
"""Prefix of a kind of native build, in place of a folder of tests/."""


ALONE = ("setup", "lint")
"""Names in a budget that are not folders of tests."""


@dataclass(frozen=True)
class Shard:
    """Shard of ``make test-all SHARD=name``: seconds of folders of tests/ and of native/KIND; extras and system packages."""

    name: str
    seconds: Mapping[str, float]
    extras: tuple[str, ...] = ()
    system: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budget:
    """Budget in seconds on two idle cores."""

    default: Mapping[str, float]
    shards: Mapping[str, Shard]
    touches: Mapping[str, tuple[str, ...]]
    """Path prefix of a source -> folders or files below tests/ that a change of it runs first."""

    @property
    def whole(self) -> float:
        """Wall-clock seconds of the default tier, whose folders of Python tests run two at a time."""
        alone = {name: seconds for name, seconds in self.default.items() if name in ALONE or name.startswith(NATIVE)}
        beside = [seconds for name, seconds in self.default.items() if name not in alone]
        return sum(alone.values()) + max([sum(beside) / LANES, *beside])


@dataclass
class Folder:
    """Result of a folder or of a native room in a run."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    slowest: list[tuple[str, float]] = field(default_factory=list)

    @property
    def tests(self) -> int:
        """Number of tests, including skipped ones."""
        return self.passed + self.failed + self.skipped


def read(file: Path = FILE) -> Budget:
    """Read tests/budget.toml; raise ValueError if a shard lists a folder that does not exist."""
    table = tomllib.loads(file.read_text())
    shards = {
        name: Shard(
            name,
            {folder: float(seconds) for folder, seconds in row.items()},
            tuple(extra for folder in row for extra in table.get("extras", {}).get(folder, ())),
            tuple(word for folder in row for word in table.get("system", {}).get(folder, ())),
        )
        for name, row in table["shards"].items()
    }
    for shard in shards.values():
        for folder in shard.seconds:
            if not folder.startswith(NATIVE) and not (file.parent / folder).is_dir():
                raise ValueError(f"{file.name}: shard {shard.name} lists {folder}, which is not a folder of tests/")
    touches = {prefix: tuple(folders) for prefix, folders in table["touches"].items()}
    return Budget({name: float(seconds) for name, seconds in table["default"].items()}, shards, touches)


def parts(shard: Shard) -> list[Shard]:
    """Split a shard into shards of one folder or native kind each, named ``shard: folder``."""
    return [
        replace(shard, name=f"{shard.name}: {folder}", seconds={folder: seconds})
        for folder, seconds in shard.seconds.items()
    ]


def over(folders: Iterable[Folder], budget: Mapping[str, float], slowness: float = 1.0) -> list[str]:
    """Return a message for each folder over twice its budget, or without a budget."""
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
    """Return a Markdown table with folder, tests, seconds and budget, and the sums."""
    listed = list(folders)
    rows = [(folder.name, folder.tests, folder.seconds, budget.get(folder.name)) for folder in listed]
    budgets = [allowed for *_, allowed in rows if allowed is not None]
    rows.append(("sum", sum(folder.tests for folder in listed), sum(folder.seconds for folder in listed), sum(budgets)))
    width = max(len(name) for name, *_ in rows)
    lines = [f"| {'folder':<{width}} | tests | seconds | budget |", f"| {'-' * width} | ----: | ------: | -----: |"]
    lines += [
        f"| {name:<{width}} | {tests:5} | {seconds:7.1f} | {f'{allowed:6.0f}' if allowed is not None else '     -'} |"
        for name, tests, seconds, allowed in rows
    ]
    return "\n".join(lines)


def slowest(folders: Iterable[Folder], number: int = SLOWEST) -> list[tuple[str, float]]:
    """Return the slowest tests, slowest first."""
    every = [test for folder in folders for test in folder.slowest]
    return sorted(every, key=lambda test: -test[1])[:number]


REFERENCE_S = 0.046
"""Seconds of the loop on the machine of the budget, estimated: 0.092 s on an idle machine on which builds take twice as long."""
MOST = 2.0
_TIMES = 25


def slowness(seconds: float) -> float:
    """Return the factor by which this machine is slower, from the seconds of the reference loop."""
    return min(MOST, max(1.0, seconds / REFERENCE_S))


def machine_seconds() -> float:
    """Return the seconds of the reference loop: the minimum of many, as other work only adds to them."""
    return min(_reference_seconds() for _ in range(_TIMES))


def _reference_seconds() -> float:
    began, number = time.perf_counter(), 0
    for step in range(1_000_000):
        number = (number * 31 + step) & 0xFFFFFFFF
    return time.perf_counter() - began
