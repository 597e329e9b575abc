"""The shard calm: the default tier again and again beside other work, and how many tests failed.

RUNS (10), LOAD (6) and AT_ONCE (1) are environment variables. LOAD processes spin; with AT_ONCE above 1 so many runs are made
at the same time, each in namespaces of its own (root only), and are each other's load: LOAD is 0 then unless it is given. The
native tests of all of them are built once before. Each run adds a line to build/calm.jsonl with the load averages that it met,
so that runs may be spread over days; the rate that is printed at the end is that of all lines of the present commit, and how
many runs in a row, up to the last, had no failure.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from suite import changes, namespaces, phases, run
from suite.budget import ROOT

LINES = ROOT / "build" / "calm.jsonl"
LOGS = ROOT / "build" / "calm"
SPIN = "while True: pass"


@contextmanager
def load(number: int) -> Iterator[None]:
    """So many processes that use all of a core that they get."""
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


@contextmanager
def met() -> Iterator[list[float]]:
    """The load average over a minute, sampled each half minute while the body runs."""
    samples, over = [os.getloadavg()[0]], threading.Event()

    def sample() -> None:
        while not over.wait(30):
            samples.append(os.getloadavg()[0])

    thread = threading.Thread(target=sample, name="load averages", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _add(line: dict[str, Any]) -> None:
    with LINES.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _of(commit: str) -> list[dict[str, Any]]:
    """Return the lines of a commit."""
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    return [each for each in map(json.loads, lines) if each["commit"] == commit]


def in_a_row(runs: Sequence[dict[str, Any]]) -> int:
    """Count the runs since the last one in which a test failed; ``runs``: a line of each, in the order in which they ended."""
    return len(list(itertools.takewhile(lambda run: run["failed"] == 0, reversed(runs))))


def here(commit: str, number: int) -> None:
    """One run in this process's tree."""
    tier = [phase for phase in phases.default_tier() if phase.name != "lint"]
    began = time.monotonic()
    with met() as samples:
        folders = run.run(tier, run.RESULTS / "calm")
    run.finish(folders, None)
    _add(
        {
            "commit": commit,
            "run": number,
            "seconds": round(time.monotonic() - began),
            "load": {"median": round(statistics.median(samples), 1), "highest": round(max(samples), 1)},
            "tests": sum(folder.tests for folder in folders),
            "failed": sum(folder.failed for folder in folders),
        }
    )


def build() -> None:
    """Build what the native tests of each run would build again in its own copy of the tree."""
    for kind in phases.NATIVE:
        command = phases.native(kind, "default").command
        subprocess.run(command, cwd=ROOT, env=os.environ | {"HVDTEST_BUILD_ONLY": "1"}, check=True)


def apart(commit: str, number: int) -> None:
    """One run in namespaces of its own; its output is in build/calm/NUMBER.log."""
    log = LOGS / f"{number}.log"
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); from suite import calm; calm.here({commit!r}, {number})"
    with namespaces.copies() as written, log.open("w") as out:
        status = namespaces.run((sys.executable, "-P", "-c", source), written, out)
        lines = namespaces.file_of(written, LINES.relative_to(ROOT))
        if status or not lines.exists():
            run.say(f"calm: run {number} ended with status {status} before it was whole: {log}")
            return
        line = json.loads(lines.read_text().splitlines()[-1])
    _add(line)
    run.say(f"calm: {json.dumps(line)}; {log}")


def main() -> int:
    """Run; the exit status is 1 where a test failed in any of the runs, or a run was not whole."""
    commit = changes.head()
    wanted, at_once = (int(os.environ.get(name, default)) for name, default in (("RUNS", "10"), ("AT_ONCE", "1")))
    LOGS.mkdir(parents=True, exist_ok=True)
    before = len(_of(commit))
    if at_once > 1:
        build()
    with load(int(os.environ.get("LOAD", "6" if at_once == 1 else "0"))), ThreadPoolExecutor(at_once) as pool:
        one = here if at_once == 1 else apart
        try:
            for each in [pool.submit(one, commit, before + number) for number in range(1, wanted + 1)]:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    runs = _of(commit)
    failed, tests = sum(each["failed"] for each in runs), sum(each["tests"] for each in runs)
    run.say(
        f"calm: {len(runs)} runs beside a load, {failed} of {tests} tests failed; the last {in_a_row(runs)} runs without"
    )
    return int(failed > 0 or len(runs) < before + wanted)
