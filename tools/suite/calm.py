"""The shard calm: repeated runs of the default tier beside a load, and the number of tests that failed.

RUNS (10), LOAD (6) and AT_ONCE (1) are environment variables. LOAD processes spin. With AT_ONCE above 1, that number of runs
is made at the same time, each in namespaces of its own, and the default of LOAD is 0, as the runs load each other; their native
tests are built once before. Each run adds a line to build/calm.jsonl with the load averages during it, so that runs may be spread
over days. The printed rate is that of all lines of the present commit; the number of runs without a failure up to the last
follows.

Namespaces are Linux's unshare(1) with overlay mounts, so they need root: a run has processes, shared memory, /tmp, the home
folder and the tree of its own, sees the same paths and writes into copies. The network is shared, as between users of one host.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from suite import phases, run
from suite.budget import ROOT

_UNSHARE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--ipc", "--mount")
_SCRIPT = """
set -euo pipefail
copies=$1 tree=$2; shift 2
over() {
  mkdir -p "$copies/$1/upper" "$copies/$1/work"
  mount -t overlay overlay -o "lowerdir=$2,upperdir=$copies/$1/upper,workdir=$copies/$1/work" "$2"
}
over home "$HOME"
over tree "$tree"
mkdir -m 1777 "$copies/tmp"
mount --bind "$copies/tmp" /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cd "$tree"
status=0
"$@" || status=$?
exit $status
"""
"""Bash stays as process 1 and reaps orphans; as the last command, "$@" would replace it."""


@contextmanager
def copies() -> Iterator[Path]:
    """Create a folder for the files that a run writes, outside of /tmp, which the run has of its own."""
    if os.geteuid() != 0:
        raise PermissionError(
            "runs at the same time need root, for namespaces and mounts of their own: leave AT_ONCE away"
        )
    folder = Path(tempfile.mkdtemp(prefix="hvd_suite_", dir="/var/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_apart(command: Sequence[str], written: Path, out: IO[str], tree: Path = ROOT) -> int:
    """Run a command in ``tree``, in namespaces of its own; return its exit status.

    Args:
        command: what runs there.
        written: the folder of ``copies()``; what the command writes into the tree is in ``file_of(written, path)``.
        out: gets what it prints.
        tree: the folder that it may change without changing it for others.

    """
    inside = (*_UNSHARE, "bash", "-c", _SCRIPT, "namespaces", str(written), str(tree), *command)
    return subprocess.run(inside, stdout=out, stderr=subprocess.STDOUT, check=False).returncode


def copy_of(written: Path, path: Path) -> Path:
    """Return the path outside of the namespaces of a file that the run has written; ``path`` is relative to the tree."""
    return written / "tree" / "upper" / path


LINES = ROOT / "build" / "calm.jsonl"
LOGS = ROOT / "build" / "calm"
SPIN = "while True: pass"


@contextmanager
def load(number: int) -> Iterator[None]:
    """Run a number of processes that spin while the body runs."""
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def met() -> Iterator[list[float]]:
    """Sample the load average over a minute each half minute while the body runs."""
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
    return [row for row in map(json.loads, lines) if row["commit"] == commit]


def in_a_row(runs: Sequence[dict[str, Any]]) -> int:
    """Count the runs since the last one in which a test failed; ``runs``: a line of each, in the order in which they ended."""
    return len(list(itertools.takewhile(lambda run: run["failed"] == 0, reversed(runs))))


def here(commit: str, number: int) -> None:
    """Run the tier once in this tree."""
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
    """Build the native tests once, which each run would otherwise build in its own copy of the tree."""
    for kind in phases.NATIVE:
        command = phases.native(kind, "default").command
        subprocess.run(command, cwd=ROOT, env=os.environ | {"HVDTEST_BUILD_ONLY": "1"}, check=True)


def apart(commit: str, number: int) -> None:
    """Run the tier once in namespaces of its own; the output is in build/calm/NUMBER.log."""
    log = LOGS / f"{number}.log"
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); from suite import calm; calm.here({commit!r}, {number})"
    with copies() as written, log.open("w") as out:
        status = run_apart((sys.executable, "-P", "-c", source), written, out)
        lines = copy_of(written, LINES.relative_to(ROOT))
        if status or not lines.exists():
            run.announce(f"calm: run {number} ended with status {status} before it was whole: {log}")
            return
        line = json.loads(lines.read_text().splitlines()[-1])
    _add(line)
    run.announce(f"calm: {json.dumps(line)}; {log}")


def main() -> int:
    """Run; return the exit status, 1 if a test failed in any run, or a run was incomplete."""
    commit = phases.head()
    count, at_once = (int(os.environ.get(name, default)) for name, default in (("RUNS", "10"), ("AT_ONCE", "1")))
    LOGS.mkdir(parents=True, exist_ok=True)
    before = len(_of(commit))
    if at_once > 1:
        build()
    with load(int(os.environ.get("LOAD", "6" if at_once == 1 else "0"))), ThreadPoolExecutor(at_once) as pool:
        run_once = here if at_once == 1 else apart
        try:
            for future in [pool.submit(run_once, commit, before + number) for number in range(1, count + 1)]:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    runs = _of(commit)
    failed, tests = sum(row["failed"] for row in runs), sum(row["tests"] for row in runs)
    run.announce(
        f"calm: {len(runs)} runs beside a load, {failed} of {tests} tests failed; the last {in_a_row(runs)} runs without"
    )
    return int(failed > 0 or len(runs) < before + count)
