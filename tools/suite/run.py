"""Run of phases: one process after the other, a watchdog for each, the table and the slowest tests at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from suite import record, stuck
from suite.budget import ROOT, Folder, over, slowest, table
from suite.phases import Phase

RESULTS = ROOT / "build" / "results"
SETUP = ROOT / "build" / "setup.seconds"
SILENT_S = 420
"""pytest's own limit for a test is 300 s, or what the test says, and fails it: only where that cannot act is a process silent for longer."""
STARTING_S = 300
"""A pytest that has begun no test yet: it imports and collects."""
LONGEST_S = 3600
"""A phase that is no pytest."""


def say(text: str) -> None:
    """A line of ours between those of the tests."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def setup() -> list[Folder]:
    """How long .ci/setup took, where it had something to do; said once."""
    if not SETUP.exists():
        return []
    seconds = float(SETUP.read_text())
    SETUP.unlink()
    return [Folder("setup", seconds)]


def run(
    phases: Iterable[Phase], results: Path = RESULTS, env: Mapping[str, str] | None = None, silent: float = SILENT_S
) -> list[Folder]:
    """Run them all, whatever fails; folders in order, those of the same name as one.

    A pytest in which no test begins or ends for ``silent`` seconds, or as long as a test at work may take by its own
    limit, is ended, and its rest runs without that test.
    """
    results.mkdir(parents=True, exist_ok=True)
    found: dict[str, Folder] = {}
    for number, phase in enumerate(phases):
        say(f"\n=== {phase.name}: {' '.join(phase.command)}")
        lines = results / f"{number:02}-{phase.name.replace('/', '-')}.jsonl"
        lines.unlink(missing_ok=True)
        for folder in _pytest(phase, lines, env or {}, silent) if phase.pytest else _command(phase, lines, env or {}):
            known = found.setdefault(folder.name, Folder(folder.name))
            known.seconds += folder.seconds
            known.passed += folder.passed
            known.failed += folder.failed
            known.skipped += folder.skipped
            known.slowest += folder.slowest
    return list(found.values())


def finish(folders: list[Folder], budget: Mapping[str, float] | None) -> int:
    """Print the table, the slowest tests and the sum; the exit status. Without a budget nothing is held to it."""
    say("\n" + table(folders, budget or {}))
    say("\nslowest tests, seconds:")
    for name, seconds in slowest(folders):
        say(f"  {seconds:6.1f}  {name}")
    failed = [folder.name for folder in folders if folder.failed]
    wrong = [f"{name} has failures" for name in failed] + (over(folders, budget) if budget is not None else [])
    say("".join(f"\n{sentence}" for sentence in wrong))
    counts = [sum(getattr(each, kind) for each in folders) for kind in ("passed", "failed", "skipped")]
    say("suite: {} passed, {} failed, {} skipped".format(*counts))
    return 1 if wrong else 0


def _environment(lines: Path, phase: Phase, more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "HVDTEST_RECORD": str(lines), "HVDTEST_FOLDER": phase.name, **more}


def _command(phase: Phase, lines: Path, env: Mapping[str, str]) -> list[Folder]:
    """A phase without a record of tests, or with one of native rooms."""
    began = time.monotonic()
    process = subprocess.Popen(phase.command, cwd=ROOT, env=_environment(lines, phase, env), start_new_session=True)
    try:
        status = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        say(f"{phase.name} has not ended within {LONGEST_S} s; who waits where:\n{stuck.report(process.pid)}")
        status = -signal.SIGKILL
    finally:
        stuck.end(process.pid)
        process.wait()
    rooms = record.native_folders(record.lines(lines))
    whole = Folder(phase.name, time.monotonic() - began - sum(room.seconds for room in rooms))
    if status != 0 and not any(room.failed for room in rooms):
        whole.failed = 1
    return [*rooms, whole]


def _pytest(phase: Phase, lines: Path, env: Mapping[str, str], silent: float) -> list[Folder]:
    """A folder; after a hang or a crash its rest runs in a process of its own."""
    began = time.monotonic()
    more = dict(env)
    broken = 0
    while True:
        process = subprocess.Popen(
            phase.command, cwd=ROOT, env=_environment(lines, phase, more), start_new_session=True
        )
        try:
            how = _watch(process, lines, silent)
        finally:
            stuck.end(process.pid)
            process.wait()
        found = record.lines(lines)
        tests = record.begun_not_ended(found)
        if not how:
            break
        if not tests:  # it ended where no test was at work: nothing could run again that has not
            say(f"{phase.name}: {how}")
            broken = 1
            break
        with lines.open("a") as file:
            for test in tests:
                say(f"FAILED {test}: {how}; the rest of {phase.name} goes on without it")
                line = {"folder": phase.name, "test": test, "seconds": 0.0, "outcome": "failed"}
                file.write(json.dumps(line) + "\n")
        more["HVDTEST_DONE"] = str(lines)
    folder = record.folder_of(phase.name, found)
    folder.seconds = time.monotonic() - began
    if process.returncode not in (0, 1, 5) or (process.returncode == 1 and not folder.failed):
        broken = 1  # a usage error, or a failure that belongs to no test
    folder.failed += broken
    return [folder]


def _watch(process: subprocess.Popen[bytes], lines: Path, silent: float) -> str:
    """Wait for the end of a pytest; empty, or what went wrong with the process itself."""
    size, moved, patience = -1, time.monotonic(), silent
    while True:
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            now = lines.stat().st_size if lines.exists() else 0
            if now != size:
                size, moved = now, time.monotonic()
                patience = record.patience(record.lines(lines), silent) if size > 0 else max(silent, STARTING_S)
            elif time.monotonic() - moved > patience:
                say(f"no test has begun or ended for {patience:g} s; who waits where:\n{stuck.report(process.pid)}")
                process.send_signal(signal.SIGABRT)  # pytest has faulthandler write every thread's stack
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    say("it does not answer SIGABRT")
                return f"hung for {patience:g} s"
            continue
        return f"the process ended by {signal.Signals(-status).name}" if status < 0 else ""
