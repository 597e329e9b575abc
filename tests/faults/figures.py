"""The figures of docs/reliability.md: python tests/faults/figures.py [R4 R10 ...]. Each is measured on a kernel of its own.

Numbers as in the fault matrix: R4 usable again after a death, R5 survivors' variables, R10 interrupts, R11 orphans of a
killed kernel, R12 files left, R21 memory per cell, R22 memory in a flood, R28 listeners on a wildcard address.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hvdtest.cluster import processes_below
from hvdtest.kernel import Kernel, tagged

RANKS = 4
STARTS = "%%hvdrun -np 4\nimport hashlib, os, torch"
ALLREDUCE = "%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, name='figures'))"


@contextmanager
def running() -> Iterator[Kernel]:
    """A kernel with four ranks."""
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home)) as kernel:
        kernel.run(STARTS, timeout=120)
        yield kernel


def pids(kernel: Kernel) -> list[int]:
    """Process ids of the ranks, in rank order."""
    return [int(line.split()[2]) for line in kernel.run("%hvd status").text().splitlines()[1:]]


def wait_for_a_spare(kernel: Kernel) -> None:
    """Return when a spare is warm: it is started when the ranks have been idle a moment, and imports in idle time."""
    deadline = time.monotonic() + 60
    kernel.run("from hvd_kernel.magics import holder_of")
    while kernel.run("holder_of(get_ipython()).current().spares").shown == ["0"]:
        assert time.monotonic() < deadline, "no spare got warm"
        time.sleep(0.2)


def usable_again(kills: int = 20) -> str:
    """R4 and R5: SIGKILL of an idle rank, every rank in turn, until an allreduce of all is right again."""
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
                assert time.monotonic() < began + 10, "nobody noticed"
            kernel.run("%hvd respawn", timeout=60)
            assert kernel.run(ALLREDUCE).shown == ["[0-3] 10"]
            seconds.append(time.monotonic() - began)
            kept += kernel.run(f"%%hvdrun {others}\nhashlib.sha256(big.numpy()).hexdigest()").shown == before
            kernel.run(f"%%hvdrun --ranks {victim}\nimport hashlib, torch\nbig = torch.arange(4_000_000) * (rank + 1)")
    return f"{spread(seconds)}; survivors' variables the same after {kept} of {kills}"


def interrupts(presses: int = 50) -> str:
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


def orphans(kills: int = 10) -> str:
    """R11 and R12: SIGKILL of the kernel while ranks wait in a collective; what is left a second later."""
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


def per_cell(cells: int = 500) -> str:
    """R21: resident memory of kernel and ranks over many small cells, after a warm-up of 100."""
    with running() as kernel:
        for _ in range(100):
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


def spread(seconds: list[float]) -> str:
    """Median, 99th percentile and worst."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):.2f} s, p99 {high:.2f} s, worst {ordered[-1]:.2f} s, n = {len(ordered)}"


def resident(pid: int) -> int:
    """Resident bytes of a process, 0 for one that is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def files() -> set[str]:
    """What stands in the places where leftovers would be."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*hvd-*")} | {
        str(path) for path in Path("/dev/shm").glob("sm_segment*")
    }


FIGURES: dict[str, tuple[str, Callable[[], str]]] = {
    "R4": (
        "an idle rank killed, a spare being warm, until an allreduce of all ranks is right again (R5 with it)",
        usable_again,
    ),
    "R10": ("interrupt in a loop of 64 MB allreduces", interrupts),
    "R11": ("kernel killed while ranks wait in a collective (R12 with it)", orphans),
    "R21": ("memory per cell", per_cell),
    "R22": ("a flood from every rank", flood),
    "R28": ("listeners on a wildcard address", listeners),
}


def main() -> None:
    """Measure what the command line names, or everything; write rows of a table."""
    chosen = sys.argv[1:] or list(FIGURES)
    for name in chosen:
        what, measure = FIGURES[name]
        sys.stdout.write(f"| {name} | {what} | {measure()} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
