"""Figures of a session: who is named in time, interrupts, memory over cells and floods, listeners."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
from hvdtest.cluster import processes_below
from hvdtest.kernel import Kernel
from shared import ALLREDUCE, RANKS, pids, resident, running, spread

CHAOS = Path(__file__).resolve().parents[2] / "tests" / "faults" / "test_chaos.py"


def named(times: int = 10) -> str:
    """R2: from SIGSTOP of a rank, or from a sleep in C that keeps Python's lock, to the sentence in the dashboard.

    The second sentence names the line, which only the stack tells.
    """
    stops, stacks = [], []
    with running() as kernel:
        ranks = pids(kernel)
        kernel.run("%%hvdrun\nimport ctypes, time")
        for number in range(times):
            victim = 1 + number % (RANKS - 1)
            started = kernel.start("%%hvdrun\nfor _ in range(150): hvd.barrier(); time.sleep(0.02)", prompts=True)
            kernel.wait_for("comm_open")
            began = time.monotonic()
            os.kill(ranks[victim], signal.SIGSTOP)
            stops.append(until_told(kernel, f"rank {victim}", "stopped") - began)
            os.kill(ranks[victim], signal.SIGCONT)
            kernel.finish_rest(started)
            sleep = f"if rank == {victim}: print('began', time.monotonic(), flush=True); ctypes.PyDLL(None).sleep(6)"
            started = kernel.start(f"%%hvdrun\ntime.sleep(1.5)\n{sleep}\nhvd.barrier()", prompts=True)
            told = until_told(kernel, f"rank {victim}", "in C code, called in")
            stacks.append(told - float(kernel.finish_rest(started).text().split()[-1]))
    return f"stopped: {spread(stops)}; with its line: {spread(stacks)}"


def until_told(kernel: Kernel, *words: str) -> float:
    """Return the time at which the dashboard says why ranks wait, in these words."""
    while True:
        data = kernel.wait_for("comm_msg")["data"]
        news = data.get("content") or data.get("state", {}).get("snapshot") or {}
        if all(word in news.get("wait", "") for word in words):
            return time.monotonic()


def interrupts(presses: int = 200) -> str:
    """R10: the key during a loop of 64 MB allreduces, until the cell has ended; the next cell is right."""
    seconds = []
    cell = (
        "%%hvdrun\nx = torch.ones(16 << 20)\n"
        "hvd.barrier()\nrank or os.kill({kernel}, 2)\nwhile True: hvd.allreduce_(x, op=hvd.Average, name='loop')"
    )
    with running() as kernel:
        for _ in range(presses):
            outcome = kernel.run(cell.format(kernel=kernel.pid), allow_error=True)
            assert outcome.reply["ename"] == "KeyboardInterrupt", outcome.error
            seconds.append(outcome.seconds)
            assert kernel.run(ALLREDUCE).shown == ["[0-3] 10"]
    return f"{spread(seconds)} for cell and interrupt together"


def ten_minutes(minutes: float = 10.0, warm: int = 100) -> str:
    """R20: cells of 200 allreduces, one after the other; what the processes hold at the end, against after a warm-up."""
    cell = "%%hvdrun\nfor _ in range(200): hvd.allreduce_(x, op=hvd.Average, name='soak')\nprint(rank, x[0].item())"
    with running() as kernel:
        kernel.run("%%hvdrun\nx = torch.ones(1 << 16)")
        for _ in range(warm):
            kernel.run(cell)
        tree = {kernel.pid, *processes_below(kernel.pid)}
        first = {pid: held(pid) for pid in tree}
        began, seconds = time.monotonic(), []
        while time.monotonic() < began + 60 * minutes:
            seconds.append(kernel.run(cell).seconds)
        last = {pid: held(pid) for pid in tree}
        grown = [[(after - before) for before, after in zip(first[pid], last[pid], strict=True)] for pid in tree]
    memory, descriptors, threads = (max(column) for column in zip(*grown, strict=True))
    part = len(seconds) // 5
    drift = statistics.median(seconds[-part:]) / statistics.median(seconds[:part]) - 1
    return (
        f"{len(seconds)} cells in {minutes:g} min: at most {memory / 1e6 * 60 / minutes:.1f} MB per hour and process "
        f"({memory / len(seconds) / 1024:.2f} kB per cell), {descriptors:+d} descriptors, {threads:+d} threads, "
        f"median cell {drift:+.0%} from the first to the last fifth"
    )


def held(pid: int) -> tuple[int, int, int]:
    """Resident bytes, descriptors and threads of a process."""
    process = psutil.Process(pid)
    return resident(pid), process.num_fds(), process.num_threads()


def flakes(runs: int = 20) -> str:
    """R27: the chaos test again and again."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", str(CHAOS)]
    failed = sum(subprocess.run(command, capture_output=True, check=False).returncode != 0 for _ in range(runs))
    return f"{failed} of {runs} runs of {CHAOS.name} failed"


def per_cell(cells: int = 3000) -> str:
    """R21: resident memory of kernel and ranks over many small cells, after a warm-up of 300."""
    with running() as kernel:
        for _ in range(300):
            kernel.run("%%hvdrun\nrank")
        first = {pid: resident(pid) for pid in (kernel.pid, *pids(kernel))}
        for _ in range(cells):
            kernel.run("%%hvdrun\nrank")
        grown = {pid: (resident(pid) - size) / cells / 1024 for pid, size in first.items()}
    return f"kernel {grown.pop(kernel.pid):.2f} kB per cell, ranks at most {max(grown.values()):.2f} kB, {cells} cells"


def flood(megabytes: int = 20) -> str:
    """R22: every rank prints at once; growth of resident memory of kernel, supervisor and ranks together."""
    with running() as kernel:
        kernel.run("%%hvdrun\nprint('x' * 1000)")
        tree = {kernel.pid, *processes_below(kernel.pid)}
        before = sum(map(resident, tree))
        outcome = kernel.run(f"%%hvdrun\nfor _ in range({megabytes * 10_000}): print('y' * 99)", timeout=300)
        after = sum(map(resident, tree & {kernel.pid, *processes_below(kernel.pid)}))
    grown = (after - before) / 1e6
    return f"4 x {megabytes} MB in {outcome.seconds:.1f} s: memory {grown:+.0f} MB, {outcome.size / 1e3:.0f} kB to the browser"


def listeners() -> str:
    """R28: TCP sockets that listen on a wildcard address, by whose they are."""
    with running() as kernel:
        found: dict[str, int] = {}
        for pid in (kernel.pid, *processes_below(kernel.pid)):
            process = psutil.Process(pid)
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN and each.laddr.ip in ("0.0.0.0", "::"):
                    found[process.name()] = found.get(process.name(), 0) + 1
    return ", ".join(f"{count} of {name}" for name, count in sorted(found.items())) or "none"
