"""Run of phases, two at a time if they leave cores idle, with a watchdog for each; the table and the slowest tests at the end.

A phase that hangs is reported with each process below it, its state, what it waits for in the kernel, and its command.
"""

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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from suite import record
from suite.budget import LANES, ROOT, Folder, machine_seconds, over, slowest, slowness, table
from suite.phases import Phase


def process_tree(pid: int) -> list[int]:
    """Return a process, its living descendants, parents first, and the other processes of its session."""
    parents: dict[int, int] = {}
    same_session: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            if int(fields[3]) == pid:
                same_session.append(int(entry.name))
    pids = [pid] if pid in parents else []
    for process in pids:  # grows while it is read
        pids += [child for child, parent in parents.items() if parent == process and child not in pids]
    return pids + [process for process in same_session if process not in pids]


def describe_process(pid: int) -> str:
    """Return a line about a process, or an empty string if it has exited."""
    place = Path("/proc") / str(pid)
    try:
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:160]
        waits = sorted({_waits(thread) for thread in (place / "task").iterdir()})
    except OSError:
        return ""
    rank = _variable(place, "HOROVOD_RANK")
    subject = f"rank {rank}, process {pid}" if rank else f"process {pid}"
    return f"  {subject}, state {state}, waits in {', '.join(waits)}: {command}"


def _waits(thread: Path) -> str:
    with suppress(OSError):
        name = (thread / "wchan").read_text()
        return name if name not in ("", "0") else "user code"
    return "?"


def _variable(place: Path, name: str) -> str:
    with suppress(OSError):
        for entry in (place / "environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{name}=".encode()):
                return entry.decode(errors="replace").partition("=")[2]
    return ""


def report_waits(pid: int) -> str:
    """Return a line for each process below ``pid``."""
    return "\n".join(filter(None, (describe_process(process) for process in process_tree(pid))))


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, children first, so that no orphan is left."""
    for process in reversed(process_tree(pid)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


RESULTS = ROOT / "build" / "results"
SETUP = ROOT / "build" / "setup.seconds"
SILENT_S = 420
"""pytest fails a test after 300 s, or its own limit: a process is silent for longer only if pytest cannot act."""
STARTING_S = 300
"""Limit of a pytest without a running test: it imports and collects, or exits after the last test."""
LONGEST_S = 3600
"""Limit of a phase that is not a pytest."""


def announce(text: str, out: IO[str] | None = None) -> None:
    """Print a line of the runner between those of the tests."""
    out = out or sys.stdout
    out.write(f"{text}\n")
    out.flush()


@dataclass(frozen=True)
class _RunOptions:
    """Parameters of a phase's run."""

    lines: Path  # record of its tests
    env: Mapping[str, str]  # additional variables
    silent: float  # limit of a pytest without a finished test, in seconds
    out: IO[str] | None = None  # file for its output if another phase runs at the same time
    stopped: threading.Event = field(default_factory=threading.Event)  # set when the whole run is interrupted


def setup() -> list[Folder]:
    """Return the seconds of .ci/setup, if it has run since the last call."""
    if not SETUP.exists():
        return []
    seconds = float(SETUP.read_text())
    SETUP.unlink()
    return [Folder("setup", seconds)]


def run(
    phases: Iterable[Phase], results: Path = RESULTS, env: Mapping[str, str] | None = None, silent: float = SILENT_S
) -> list[Folder]:
    """Run all phases, also after failures; return the folders in order, those of the same name as one.

    Phases that leave cores idle run two at a time after the others; the output of each is printed when it is complete, and
    is in ``results`` meanwhile. If no test starts or ends for ``silent`` seconds, or for the limit of the running test,
    the pytest is terminated, and the remaining tests run without that test.
    """
    results.mkdir(parents=True, exist_ok=True)
    named = [(phase, results / f"{number:02}-{phase.name.replace('/', '-')}") for number, phase in enumerate(phases)]
    beside = [phase.beside for phase, _ in named]
    folders: dict[Path, list[Folder]] = {}
    for phase, file in named:
        if not phase.beside or sum(beside) == 1:
            announce(f"\n=== {phase.name}: {' '.join(phase.command)}")
            folders[file] = _one(phase, _RunOptions(file.with_suffix(".jsonl"), env or {}, silent))
    folders |= _lanes([(phase, file) for phase, file in named if file not in folders], env or {}, silent)
    return _joined(folder for _, file in named for folder in folders[file])


def _lanes(named: list[tuple[Phase, Path]], env: Mapping[str, str], silent: float) -> dict[Path, list[Folder]]:
    """Run phases two at a time."""
    stopped, turn = threading.Event(), threading.Lock()

    def one(phase: Phase, file: Path) -> list[Folder]:
        log = file.with_suffix(".log")
        announce(f"\n=== {phase.name} begins; its output comes when it has ended, and is in {log} meanwhile")
        with log.open("w", errors="replace") as out:
            folders = _one(phase, _RunOptions(file.with_suffix(".jsonl"), env, silent, out, stopped))
        with turn:
            announce(f"\n=== {phase.name}: {' '.join(phase.command)}\n{log.read_text(errors='replace')}")
        return folders

    with ThreadPoolExecutor(LANES) as pool:
        futures = {file: pool.submit(one, phase, file) for phase, file in named}
        try:
            return {file: future.result() for file, future in futures.items()}
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one(phase: Phase, options: _RunOptions) -> list[Folder]:
    options.lines.unlink(missing_ok=True)
    return _pytest(phase, options) if phase.pytest else _command(phase, options)


def _joined(folders: Iterable[Folder]) -> list[Folder]:
    by_name: dict[str, Folder] = {}
    for folder in folders:
        whole = by_name.setdefault(folder.name, Folder(folder.name))
        whole.seconds += folder.seconds
        whole.passed += folder.passed
        whole.failed += folder.failed
        whole.skipped += folder.skipped
        whole.slowest += folder.slowest
    return list(by_name.values())


def finish(
    folders: list[Folder],
    budget: Mapping[str, float] | None,
    took: float | None = None,
    *,
    measured: Callable[[], float] = machine_seconds,
) -> int:
    """Print the table, the slowest tests and the sum; return the exit status. Without a budget no limit applies.

    ``took``: wall-clock seconds, less than the sum if folders ran at the same time. ``measured``: returns the seconds of
    the reference loop, which give the speed of this machine.
    """
    announce("\n" + table(folders, budget or {}))
    announce("\nslowest tests, seconds:")
    for name, seconds in slowest(folders):
        announce(f"  {seconds:6.1f}  {name}")
    failed = [folder.name for folder in folders if folder.failed]
    wrong = [f"{name} has failures" for name in failed]
    if budget is not None:
        factor = slowness(measured())
        announce(f"\nthis machine takes {factor:.2f} times as long as the budget's")
        wrong += over(folders, budget, factor)
    announce("".join(f"\n{sentence}" for sentence in wrong))
    if took is not None:
        announce(f"suite: {took:.0f} s by the clock")
    counts = [sum(getattr(folder, kind) for folder in folders) for kind in ("passed", "failed", "skipped")]
    announce("suite: {} passed, {} failed, {} skipped".format(*counts))
    return 1 if wrong else 0


def _started(phase: Phase, options: _RunOptions, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HVDTEST_RECORD": str(options.lines), "HVDTEST_FOLDER": phase.name, **options.env, **more}
    error = None if options.out is None else subprocess.STDOUT
    return subprocess.Popen(phase.command, cwd=ROOT, env=env, stdout=options.out, stderr=error, start_new_session=True)


def _command(phase: Phase, options: _RunOptions) -> list[Folder]:
    """Run a phase without a record of tests, or with a record of native rooms."""
    began = time.monotonic()
    process = _started(phase, options, {})
    try:
        status = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        announce(
            f"{phase.name} has not ended within {LONGEST_S} s; processes and what they wait for:\n{report_waits(process.pid)}",
            options.out,
        )
        status = -signal.SIGKILL
    finally:
        kill_tree(process.pid)
        process.wait()
    rooms = record.native_folders(record.lines(options.lines))
    whole = Folder(phase.name, time.monotonic() - began - sum(room.seconds for room in rooms))
    if status != 0 and not any(room.failed for room in rooms):
        whole.failed = 1
    return [*rooms, whole]


def _pytest(phase: Phase, options: _RunOptions) -> list[Folder]:
    """Run a folder; after a hang or a crash the remaining tests run in a new process."""
    began = time.monotonic()
    more: dict[str, str] = {}
    broken = 0
    while True:
        process = _started(phase, options, more)
        try:
            how = _watch(process, options)
        finally:
            kill_tree(process.pid)
            process.wait()
        recorded = record.lines(options.lines)
        tests = record.begun_not_ended(recorded)
        if not how or options.stopped.is_set():
            break
        if not tests:  # no test was running: another attempt would fail in the same way
            announce(f"{phase.name}: {how}", options.out)
            broken = 1
            break
        with options.lines.open("a") as file:
            for test in tests:
                announce(f"FAILED {test}: {how}; the rest of {phase.name} goes on without it", options.out)
                line = {"folder": phase.name, "test": test, "seconds": 0.0, "outcome": "failed"}
                file.write(json.dumps(line) + "\n")
        more["HVDTEST_DONE"] = str(options.lines)
    folder = record.folder_of(phase.name, recorded)
    folder.seconds = time.monotonic() - began
    if process.returncode not in (0, 1, 5) or (process.returncode == 1 and not folder.failed):
        broken = 1  # a usage error, or a failure outside of the tests
    folder.failed += broken
    return [folder]


def _watch(process: subprocess.Popen[bytes], options: _RunOptions) -> str:
    """Wait for a pytest to exit; return what went wrong with the process itself, or an empty string."""
    size, moved, patience = -1, time.monotonic(), options.silent
    while not options.stopped.is_set():
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            now = options.lines.stat().st_size if options.lines.exists() else 0
            if now != size:
                size, moved = now, time.monotonic()
                recorded = record.lines(options.lines) if size else []
                at_work = record.begun_not_ended(recorded)
                patience = record.patience(recorded, options.silent) if at_work else max(options.silent, STARTING_S)
            elif time.monotonic() - moved > patience:
                return _terminate_silent(process, options, patience)
            continue
        return f"the process ended by {signal.Signals(-status).name}" if status < 0 else ""
    return "interrupted"


def _terminate_silent(process: subprocess.Popen[bytes], options: _RunOptions, patience: float) -> str:
    """Terminate a silent pytest; return the reason."""
    waits = report_waits(process.pid)
    announce(f"no test has begun or ended for {patience:g} s; processes and what they wait for:\n{waits}", options.out)
    process.send_signal(signal.SIGABRT)  # pytest has faulthandler write every thread's stack
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        announce("it does not answer SIGABRT", options.out)
    return f"hung for {patience:g} s"
