"""Command line of the test suite: python tools/suite default|shard|changed|calm|ci (make test, make test-all, make changed).

default [FOLDER ...]   the default tier, or these folders of it (lint and native are folders too)
shard NAME             everything of a shard, the nightly tests too
changed                lint and the tests of what differs from HEAD (BASE=commit: from that)
calm                   the default tier RUNS times (10) beside a load of LOAD (6) processes that spin
ci                     the default tier; then, as far as 60 minutes reach, the shards of what changed
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suite import budget, calm, phases, run

CI_S = 3600


def default(only: list[str], setup: list[budget.Folder]) -> int:
    """Run the default tier; its time includes the setup."""
    held, began = budget.read(), time.monotonic() - sum(folder.seconds for folder in setup)
    folders = setup + run.run(phases.default_tier(only))
    return run.finish(folders, held.default, time.monotonic() - began)


def shard(name: str) -> int:
    """Run a shard."""
    held = budget.read()
    if name not in held.shards:
        sys.exit(f"suite: there is no shard {name!r}: choose one of {', '.join([*held.shards, 'calm'])}")
    return _shard(held.shards[name])


def _shard(chosen: budget.Shard) -> int:
    if chosen.extras:
        subprocess.run(["bash", ".ci/extras", ",".join(chosen.extras)], check=True)
    for word in chosen.system:
        subprocess.run(["bash", ".ci/system", word], check=True)
    began, budget_s = time.monotonic(), sum(chosen.seconds.values())
    status = run.finish(
        run.run(phases.shard(chosen), run.RESULTS / chosen.name.replace("/", "-"), {"HVDTEST_TIER": "all"}), None
    )
    took = time.monotonic() - began
    run.announce(f"shard {chosen.name}: {took:.0f} s, budget {budget_s:.0f} s")
    return status or int(took > budget.FACTOR * budget.slowness(budget.machine_seconds()) * budget_s)


def changed() -> int:
    """Run lint and the tests of what differs from HEAD."""
    held = budget.read()
    base = os.environ.get("BASE", "HEAD")
    files = phases.changed_files(base)
    paths = phases.tests_of(files, held)
    chosen = [phases.Phase("lint", ("bash", ".ci/lint"))]
    rooms = sorted({path for path in paths if path.startswith("native/")})
    if rooms:
        chosen.append(phases.Phase("native", ("bash", ".ci/native", "asan", "default", *(Path(p).name for p in rooms))))
    tests = [f"tests/{path}" for path in paths if not path.startswith("native/")]
    if "tests/unit" in tests:
        tests.remove("tests/unit")
        chosen.append(phases.pytest_of("unit", phases.DEFAULT_TIER))
    if tests:
        command = (*phases.PYTEST, *phases.DEFAULT_TIER, *tests)
        chosen.append(phases.Phase("changed", command, pytest=True))
    return run.finish(run.run(chosen, run.RESULTS / "changed", {"BASE": base}), None)


def ci() -> int:
    """Run the default tier, then the shards of the change while time is left."""
    setup = run.setup()
    began = time.monotonic() - sum(folder.seconds for folder in setup)
    status = default([], setup)
    if status:
        return status
    held = budget.read()
    for name in phases.shards_of(phases.changed_files(os.environ.get("BASE") or phases.base()), held):
        for part in budget.parts(held.shards[name]):
            left, needed = CI_S - (time.monotonic() - began), sum(part.seconds.values())
            if needed > left:
                run.announce(f"\n{part.name} does not run: it may take {needed:.0f} s, and {left:.0f} s are left")
                continue
            status |= _shard(part)
    return status


def main() -> int:
    """Run the command of the command line; return the exit status."""
    match sys.argv[1:]:
        case ["default", *only]:
            return default(only, run.setup())
        case ["shard", "calm"] | ["calm"]:
            return calm.main()
        case ["shard", name]:
            return shard(name)
        case ["changed"]:
            return changed()
        case ["ci"]:
            return ci()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
