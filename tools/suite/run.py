"""Run of phases: which may run two at a time, a watchdog for each, the table and the slowest tests at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from suite import machine, record, stuck
from suite.budget import LANES, ROOT, Folder, over, slowest, table
from suite.phases import Phase

RESULTS = ROOT / "build" / "results"
SETUP = ROOT / "build" / "setup.seconds"
SILENT_S = 420
"""pytest's own limit for a test is 300 s, or what the test says, and fails it: only where that cannot act is a process silent for longer."""
STARTING_S = 300
"""A pytest in which no test is at work: it imports and collects, or has run all and ends."""
LONGEST_S = 3600
"""A phase that is no pytest."""


def say(text: str, out: IO[str] | None = None) -> None:
    """A line of ours between those of the tests."""
    out = out or sys.stdout
    out.write(f"{text}\n")
    out.flush()


@dataclass(frozen=True)
class _Way:
    """How a phase runs."""

    lines: Path  # its record
    env: Mapping[str, str]  # variables beyond those that are here
    silent: float  # how many seconds a pytest may be
    out: IO[str] | None = None  # where its output goes while others run beside it
    stopped: threading.Event = field(default_factory=threading.Event)  # the whole run has been interrupted


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

    Those that leave cores idle run two at a time after the others; each one's output is shown when it has ended, and is
    in ``results`` meanwhile. A pytest in which a test is at work and none begins or ends for ``silent`` seconds, or for
    as long as that test may take by its own limit, is ended, and its rest runs without that test.
    """
    results.mkdir(parents=True, exist_ok=True)
    named = [(phase, results / f"{number:02}-{phase.name.replace('/', '-')}") for number, phase in enumerate(phases)]
    beside = [phase.beside for phase, _ in named]
    found: dict[Path, list[Folder]] = {}
    for phase, file in named:
        if not phase.beside or sum(beside) == 1:
            say(f"\n=== {phase.name}: {' '.join(phase.command)}")
            found[file] = _one(phase, _Way(file.with_suffix(".jsonl"), env or {}, silent))
    found |= _lanes([each for each in named if each[1] not in found], env or {}, silent)
    return _joined(folder for _, file in named for folder in found[file])


def _lanes(named: list[tuple[Phase, Path]], env: Mapping[str, str], silent: float) -> dict[Path, list[Folder]]:
    """Run phases two at a time."""
    stopped, turn = threading.Event(), threading.Lock()

    def one(phase: Phase, file: Path) -> list[Folder]:
        log = file.with_suffix(".log")
        say(f"\n=== {phase.name} begins; its output comes when it has ended, and is in {log} meanwhile")
        with log.open("w", errors="replace") as out:
            found = _one(phase, _Way(file.with_suffix(".jsonl"), env, silent, out, stopped))
        with turn:
            say(f"\n=== {phase.name}: {' '.join(phase.command)}\n{log.read_text(errors='replace')}")
        return found

    with ThreadPoolExecutor(LANES) as pool:
        futures = {file: pool.submit(one, phase, file) for phase, file in named}
        try:
            return {file: future.result() for file, future in futures.items()}
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one(phase: Phase, way: _Way) -> list[Folder]:
    way.lines.unlink(missing_ok=True)
    return _pytest(phase, way) if phase.pytest else _command(phase, way)


def _joined(folders: Iterable[Folder]) -> list[Folder]:
    found: dict[str, Folder] = {}
    for folder in folders:
        known = found.setdefault(folder.name, Folder(folder.name))
        known.seconds += folder.seconds
        known.passed += folder.passed
        known.failed += folder.failed
        known.skipped += folder.skipped
        known.slowest += folder.slowest
    return list(found.values())


def finish(
    folders: list[Folder],
    budget: Mapping[str, float] | None,
    took: float | None = None,
    *,
    measured: Callable[[], float] = machine.measured,
) -> int:
    """Print the table, the slowest tests and the sum; the exit status. Without a budget nothing is held to it.

    ``took``: seconds by the clock, which are fewer than the sum where folders ran at the same time. ``measured``: the
    seconds that tell how fast this machine is.
    """
    say("\n" + table(folders, budget or {}))
    say("\nslowest tests, seconds:")
    for name, seconds in slowest(folders):
        say(f"  {seconds:6.1f}  {name}")
    failed = [folder.name for folder in folders if folder.failed]
    wrong = [f"{name} has failures" for name in failed]
    if budget is not None:
        slowness = machine.slowness(measured())
        say(f"\nthis machine takes {slowness:.2f} times as long as the budget's")
        wrong += over(folders, budget, slowness)
    say("".join(f"\n{sentence}" for sentence in wrong))
    if took is not None:
        say(f"suite: {took:.0f} s by the clock")
    counts = [sum(getattr(each, kind) for each in folders) for kind in ("passed", "failed", "skipped")]
    say("suite: {} passed, {} failed, {} skipped".format(*counts))
    return 1 if wrong else 0


def _started(phase: Phase, way: _Way, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HVDTEST_RECORD": str(way.lines), "HVDTEST_FOLDER": phase.name, **way.env, **more}
    error = None if way.out is None else subprocess.STDOUT
    return subprocess.Popen(phase.command, cwd=ROOT, env=env, stdout=way.out, stderr=error, start_new_session=True)


def _command(phase: Phase, way: _Way) -> list[Folder]:
    """A phase without a record of tests, or with one of native rooms."""
    began = time.monotonic()
    process = _started(phase, way, {})
    try:
        status = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        say(f"{phase.name} has not ended within {LONGEST_S} s; who waits where:\n{stuck.report(process.pid)}", way.out)
        status = -signal.SIGKILL
    finally:
        stuck.end(process.pid)
        process.wait()
    rooms = record.native_folders(record.lines(way.lines))
    whole = Folder(phase.name, time.monotonic() - began - sum(room.seconds for room in rooms))
    if status != 0 and not any(room.failed for room in rooms):
        whole.failed = 1
    return [*rooms, whole]


def _pytest(phase: Phase, way: _Way) -> list[Folder]:
    """A folder; after a hang or a crash its rest runs in a process of its own."""
    began = time.monotonic()
    more: dict[str, str] = {}
    broken = 0
    while True:
        process = _started(phase, way, more)
        try:
            how = _watch(process, way)
        finally:
            stuck.end(process.pid)
            process.wait()
        found = record.lines(way.lines)
        tests = record.begun_not_ended(found)
        if not how or way.stopped.is_set():
            break
        if not tests:  # it ended where no test was at work: nothing could run again that has not
            say(f"{phase.name}: {how}", way.out)
            broken = 1
            break
        with way.lines.open("a") as file:
            for test in tests:
                say(f"FAILED {test}: {how}; the rest of {phase.name} goes on without it", way.out)
                line = {"folder": phase.name, "test": test, "seconds": 0.0, "outcome": "failed"}
                file.write(json.dumps(line) + "\n")
        more["HVDTEST_DONE"] = str(way.lines)
    folder = record.folder_of(phase.name, found)
    folder.seconds = time.monotonic() - began
    if process.returncode not in (0, 1, 5) or (process.returncode == 1 and not folder.failed):
        broken = 1  # a usage error, or a failure that belongs to no test
    folder.failed += broken
    return [folder]


def _watch(process: subprocess.Popen[bytes], way: _Way) -> str:
    """Wait for the end of a pytest; empty, or what went wrong with the process itself."""
    size, moved, patience = -1, time.monotonic(), way.silent
    while not way.stopped.is_set():
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            now = way.lines.stat().st_size if way.lines.exists() else 0
            if now != size:
                size, moved = now, time.monotonic()
                found = record.lines(way.lines) if size else []
                at_work = record.begun_not_ended(found)
                patience = record.patience(found, way.silent) if at_work else max(way.silent, STARTING_S)
            elif time.monotonic() - moved > patience:
                return _ended(process, way, patience)
            continue
        return f"the process ended by {signal.Signals(-status).name}" if status < 0 else ""
    return "interrupted"


def _ended(process: subprocess.Popen[bytes], way: _Way, patience: float) -> str:
    """End a pytest that is silent; say where it stood."""
    who = stuck.report(process.pid)
    say(f"no test has begun or ended for {patience:g} s; who waits where:\n{who}", way.out)
    process.send_signal(signal.SIGABRT)  # pytest has faulthandler write every thread's stack
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        say("it does not answer SIGABRT", way.out)
    return f"hung for {patience:g} s"
