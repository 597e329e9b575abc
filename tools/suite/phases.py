"""Phases of a tier or shard: lint, native builds with their tests, and one pytest process per folder. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.budget import NATIVE as NATIVE_KIND
from suite.budget import Budget, Shard

PYTEST = (".venv/bin/python", "-P", "-m", "pytest", "-q")
EXTRAS = "build/extras/bin/python"
"""Of the copy of .venv that .ci/extras makes: what a shard's extras bring is in no other tests' way."""
PARALLEL = dict.fromkeys(("unit", "platforms"), ("-n", "2", "--dist", "loadfile"))
"""Folders whose files share nothing: two processes for one folder."""
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
)
"""Those that take longest are early: two run at a time."""
NATIVE = ("asan", "plain")
"""Kinds of native builds in the default tier; .ci/native says which rooms run in which."""


@dataclass(frozen=True)
class Phase:
    """One command.

    ``pytest``: it writes a record of its tests, and its rest can run without those that have ended. ``beside``: it leaves
    cores idle, and another such phase may run at the same time.
    """

    name: str
    command: tuple[str, ...]
    pytest: bool = False
    beside: bool = False


def pytest_of(folder: str, more: Sequence[str] = (), python: str = PYTEST[0]) -> Phase:
    """A folder of tests/."""
    command = (python, *PYTEST[1:], *PARALLEL.get(folder, ()), *more, f"tests/{folder}")
    return Phase(folder, command, pytest=True, beside=True)


def native(kind: str, tier: str) -> Phase:
    """Build and run the native tests with one kind of instrumentation; compilers: build with each that is here."""
    if kind == "compilers":
        return Phase("native/compilers", ("bash", ".ci/compilers"))
    return Phase(f"native/{kind}", ("bash", ".ci/native", kind, tier))


def default_tier(only: Iterable[str] = ()) -> list[Phase]:
    """What ``make test`` runs; ``only``: of these folders."""
    phases = [Phase("lint", ("bash", ".ci/lint"))]
    phases += [native(kind, "default") for kind in NATIVE]
    phases += [pytest_of(folder, DEFAULT_TIER) for folder in FOLDERS]
    wanted = set(only)
    return [phase for phase in phases if not wanted or phase.name.split("/")[0] in wanted]


def shard(which: Shard) -> list[Phase]:
    """What ``make test-all SHARD=name`` runs: everything of its folders, the nightly tests too."""
    python = EXTRAS if which.extras else PYTEST[0]
    return [
        native(what.removeprefix(NATIVE_KIND), "all")
        if what.startswith(NATIVE_KIND)
        else pytest_of(what, python=python)
        for what in which.seconds
    ]


def shard_of(path: str, budget: Budget) -> str | None:
    """The shard that runs a file or folder below tests/."""
    for name, each in budget.shards.items():
        if any(path == folder or path.startswith(f"{folder}/") for folder in each.seconds):
            return name
    return "native" if path.startswith("native/") else None
