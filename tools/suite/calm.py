"""The shard calm: the default tier again and again beside processes that spin, and how many tests failed.

RUNS (10) and LOAD (6) are environment variables; LOAD=0 where the machine has other work. Each run adds a line to
build/calm.jsonl with the load averages that it met, so that runs may be spread over days; the rate that is printed at the end
is that of all lines of the present commit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from suite import changes, phases, run
from suite.budget import ROOT

LINES = ROOT / "build" / "calm.jsonl"
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


def main() -> int:
    """Run; the exit status is 1 where a test failed in any of the runs."""
    commit = changes.head()
    tier = [phase for phase in phases.default_tier() if phase.name != "lint"]
    for number in range(1, int(os.environ.get("RUNS", "10")) + 1):
        began = time.monotonic()
        with load(int(os.environ.get("LOAD", "6"))), met() as samples:
            folders = run.run(tier, run.RESULTS / "calm")
        run.finish(folders, None)
        line = {
            "commit": commit,
            "run": number,
            "seconds": round(time.monotonic() - began),
            "load": {"median": round(statistics.median(samples), 1), "highest": round(max(samples), 1)},
            "tests": sum(folder.tests for folder in folders),
            "failed": sum(folder.failed for folder in folders),
        }
        with LINES.open("a") as file:
            file.write(json.dumps(line) + "\n")
    runs = [each for each in map(json.loads, LINES.read_text().splitlines()) if each["commit"] == commit]
    failed, tests = sum(each["failed"] for each in runs), sum(each["tests"] for each in runs)
    run.say(f"calm: {len(runs)} runs beside a load, {failed} of {tests} tests failed")
    return int(failed > 0)
