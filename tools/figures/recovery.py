"""Figures of recovery: usable again after a death, what a killed kernel leaves, throughput under faults."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from hvdtest.chaos import Chaos
from hvdtest.cluster import processes_below
from hvdtest.kernel import Kernel, tagged
from hvdtest.sentences import Fault
from shared import ALLREDUCE, RANKS, STARTS, pids, running, spread, wait_for_a_spare

TESTS = Path(__file__).resolve().parents[2] / "tests"


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


def orphans(kills: int = 50) -> str:
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


def files() -> set[str]:
    """What stands in the places where leftovers would be."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*hvd-*")} | {
        str(path) for path in Path("/dev/shm").glob("sm_segment*")
    }


def throughput(minutes: float = 3.0, every_s: float = 29.0) -> str:
    """R8: laps of so many seconds, in turn without a fault and with a rank killed in the middle of the same steps."""
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home), env={"PYTHONPATH": str(TESTS)}) as kernel:
        chaos = Chaos(kernel, RANKS)
        wait_for_a_spare(kernel)
        began = time.monotonic()
        chaos.lap(500)
        steps = max(2, round(500 * every_s / (time.monotonic() - began)))
        laps = max(1, round(60 * minutes / every_s))
        pairs = [(trained(chaos, steps, None)[0], *trained(chaos, steps, lap % RANKS)) for lap in range(laps)]
    plain, faulty, again = map(list, zip(*pairs, strict=True))
    each = sorted(without / with_ for without, with_, _ in pairs)
    return (
        f"{sum(plain) / sum(faulty):.1%} of {laps * steps / sum(plain):.0f} steps/s kept "
        f"(pairs of laps: {each[0]:.1%} to {each[-1]:.1%}), {laps} ranks killed, one every {every_s:g} s; "
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
