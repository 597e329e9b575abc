"""Figures of sessions and recovery: time to name a rank, interrupts, memory, floods, listeners, deaths, orphans, throughput."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from hvdtest.chaos import Chaos
from hvdtest.cluster import processes_below
from hvdtest.kernel import Kernel, tagged
from hvdtest.sentences import Fault

RANKS = 4
STARTS = "%%hvdrun -np 4\nimport hashlib, os, torch"
ALLREDUCE = "%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, name='figures'))"


@contextmanager
def running() -> Iterator[Kernel]:
    """Start a kernel with four ranks."""
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home)) as kernel:
        kernel.run(STARTS, timeout=120)
        yield kernel


def pids(kernel: Kernel) -> list[int]:
    """Return the process ids of the ranks, in rank order."""
    return [int(line.split()[2]) for line in kernel.run("%hvd status").text().splitlines()[1:]]


def wait_for_a_spare(kernel: Kernel) -> None:
    """Return when a spare is warm: it is started when the ranks have been idle a moment, and imports in idle time."""
    deadline = time.monotonic() + 60
    kernel.run("from hvd_kernel.magics import manager_of")
    while kernel.run("manager_of(get_ipython()).current().spares").shown == ["0"]:
        assert time.monotonic() < deadline, "no spare got warm"
        time.sleep(0.2)


def spread(seconds: list[float]) -> str:
    """Return median, 99th percentile and worst value as text."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):.2f} s, p99 {high:.2f} s, worst {ordered[-1]:.2f} s, n = {len(ordered)}"


def resident(pid: int) -> int:
    """Return the resident bytes of a process, 0 if it has exited."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


TESTS = Path(__file__).resolve().parents[2] / "tests"


def usable_again(kills: int = 20) -> str:
    """Measure R4 and R5: SIGKILL of an idle rank, every rank in turn, until an allreduce of all ranks is right again."""
    seconds, kept = [], 0
    with running() as kernel:
        kernel.run("%%hvdrun\nbig = torch.arange(4_000_000) * (rank + 1)")
        for number in range(kills):
            victim = number % RANKS
            others = f"--ranks {','.join(str(r) for r in range(RANKS) if r != victim)}"
            before = kernel.run(f"%%hvdrun {others}\nhashlib.sha256(big.numpy()).hexdigest()").shown
            wait_for_a_spare(kernel)
            os.kill(pids(kernel)[victim], signal.SIGKILL)
            began = time.monotonic()
            while " dead " not in kernel.run("%hvd status").text():
                assert time.monotonic() < began + 10, "the death was not noticed"
            kernel.run("%hvd respawn", timeout=60)
            assert kernel.run(ALLREDUCE).shown == ["[0-3] 10"]
            seconds.append(time.monotonic() - began)
            kept += kernel.run(f"%%hvdrun {others}\nhashlib.sha256(big.numpy()).hexdigest()").shown == before
            kernel.run(f"%%hvdrun --ranks {victim}\nimport hashlib, torch\nbig = torch.arange(4_000_000) * (rank + 1)")
    return f"{spread(seconds)}; survivors' variables the same after {kept} of {kills}"


def orphans(kills: int = 50) -> str:
    """Measure R11 and R12: SIGKILL of the kernel while ranks wait in a collective; what is left a second later."""
    left_processes = left_files = 0
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as home:
            kernel = Kernel(Path(home))
            before = files()
            with kernel:
                kernel.run(STARTS, timeout=120)
                kernel.start("%%hvdrun\nif rank: hvd.barrier()\nelse: import time; time.sleep(60)")
                below = processes_below(kernel.pid)
                os.kill(kernel.pid, signal.SIGKILL)
                deadline = time.monotonic() + 1.0
                while tagged(kernel.tag) and time.monotonic() < deadline:
                    time.sleep(0.01)
                left_processes += len(tagged(kernel.tag))
                left_files += len(files() - before)
                assert below
    return f"{left_processes} processes and {left_files} files left, {kills} kernels killed"


def files() -> set[str]:
    """Return the files in the places of leftovers."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*hvd-*")} | {
        str(path) for path in Path("/dev/shm").glob("sm_segment*")
    }


def throughput(minutes: float = 3.0, every_s: float = 29.0) -> str:
    """Measure R8: laps without a fault, alternating with laps in which a rank is killed in the middle of the same steps."""
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home), env={"PYTHONPATH": str(TESTS)}) as kernel:
        chaos = Chaos(kernel, RANKS)
        wait_for_a_spare(kernel)
        began = time.monotonic()
        chaos.lap(500)
        steps = max(2, round(500 * every_s / (time.monotonic() - began)))
        laps = max(1, round(60 * minutes / every_s))
        pairs = [(trained(chaos, steps, None)[0], *trained(chaos, steps, lap % RANKS)) for lap in range(laps)]
    plain, faulty, again = map(list, zip(*pairs, strict=True))
    ratios = sorted(without / with_ for without, with_, _ in pairs)
    return (
        f"{sum(plain) / sum(faulty):.1%} of {laps * steps / sum(plain):.0f} steps/s kept "
        f"(pairs of laps: {ratios[0]:.1%} to {ratios[-1]:.1%}), {laps} ranks killed, one every {every_s:g} s; "
        f"usable again: {spread(again)}"
    )


def trained(chaos: Chaos, steps: int, victim: int | None) -> tuple[float, float]:
    """Train on; return the seconds, and of these how many went by until all could go on after the victim's death."""
    done = chaos.step()
    began = time.monotonic()
    faults = [] if victim is None else [Fault("kill", victim, done + steps // 2)]
    lap = chaos.lap(done + steps, faults)
    if faults:
        assert lap.ename == "RankDied", lap.outcome.error
        chaos.lap(done + steps)
    took = time.monotonic() - began
    assert chaos.step() == done + steps
    return took, lap.usable_after_s


CHAOS = Path(__file__).resolve().parents[2] / "tests" / "faults" / "test_chaos.py"


def time_to_name(times: int = 10) -> str:
    """Measure R2: from SIGSTOP of a rank, or from a sleep in C that holds the GIL, to the message in the dashboard.

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
            delay = until_told(kernel, f"rank {victim}", "in C code, called in")
            stacks.append(delay - float(kernel.finish_rest(started).text().split()[-1]))
    return f"stopped: {spread(stops)}; with its line: {spread(stacks)}"


def until_told(kernel: Kernel, *words: str) -> float:
    """Return the time at which the dashboard says why ranks wait, in these words."""
    while True:
        data = kernel.wait_for("comm_msg")["data"]
        news = data.get("content") or data.get("state", {}).get("snapshot") or {}
        if all(word in news.get("wait", "") for word in words):
            return time.monotonic()


def interrupts(presses: int = 200) -> str:
    """Measure R10: the interrupt key during a loop of 64 MB allreduces, until the cell has ended; the next cell is right."""
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
    """Measure R20: cells of 200 allreduces for ten minutes; resources of the processes at the end against after a warm-up."""
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
    """Return resident bytes, descriptors and threads of a process."""
    process = psutil.Process(pid)
    return resident(pid), process.num_fds(), process.num_threads()


def flakes(runs: int = 20) -> str:
    """Measure R27: failures of repeated chaos tests."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", str(CHAOS)]
    failed = sum(subprocess.run(command, capture_output=True, check=False).returncode != 0 for _ in range(runs))
    return f"{failed} of {runs} runs of {CHAOS.name} failed"


def per_cell(cells: int = 3000) -> str:
    """Measure R21: resident memory of kernel and ranks over many small cells, after a warm-up of 300."""
    with running() as kernel:
        for _ in range(300):
            kernel.run("%%hvdrun\nrank")
        first = {pid: resident(pid) for pid in (kernel.pid, *pids(kernel))}
        for _ in range(cells):
            kernel.run("%%hvdrun\nrank")
        grown = {pid: (resident(pid) - size) / cells / 1024 for pid, size in first.items()}
    return f"kernel {grown.pop(kernel.pid):.2f} kB per cell, ranks at most {max(grown.values()):.2f} kB, {cells} cells"


def flood(megabytes: int = 20) -> str:
    """Measure R22: every rank prints at once; growth of resident memory of kernel, supervisor and ranks."""
    with running() as kernel:
        kernel.run("%%hvdrun\nprint('x' * 1000)")
        tree = {kernel.pid, *processes_below(kernel.pid)}
        before = sum(map(resident, tree))
        outcome = kernel.run(f"%%hvdrun\nfor _ in range({megabytes * 10_000}): print('y' * 99)", timeout=300)
        after = sum(map(resident, tree & {kernel.pid, *processes_below(kernel.pid)}))
    grown = (after - before) / 1e6
    return f"4 x {megabytes} MB in {outcome.seconds:.1f} s: memory {grown:+.0f} MB, {outcome.size / 1e3:.0f} kB to the browser"


def listeners() -> str:
    """Measure R28: TCP sockets that listen on a wildcard address, by process."""
    with running() as kernel:
        addresses: dict[str, int] = {}
        for pid in (kernel.pid, *processes_below(kernel.pid)):
            process = psutil.Process(pid)
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.ip in ("0.0.0.0", "::"):
                    addresses[process.name()] = addresses.get(process.name(), 0) + 1
    return ", ".join(f"{count} of {name}" for name, count in sorted(addresses.items())) or "none"
