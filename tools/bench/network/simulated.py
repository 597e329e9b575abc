"""The simulator beside eight real hosts: allreduce over links of a known rate, latency and cost of a message. As root.

    python -P tools/bench/network/simulated.py build/editable/simulator [HOSTS]     8

The links are those of 10 Gbit/s and 50 us, slowed down a hundredfold: 100 Mbit/s and 5 ms. What a link holds stays the same,
and hosts that share two cores have, in proportion, a hundred times the processor (time dilation: Gupta et al., NSDI 2006).
The simulator gets only what a plain TCP connection measures on these links.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tests"), str(Path(__file__).resolve().parent)]

from compare import Contender, measured, started
from emulated import EmulatedHosts, latency_of, message_cost_of, rate_of
from hvdtest.hosts import why_not

RATE, LATENCY = 1e8, 5e-3
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
TIMES, ROUNDS = 5, 5


def simulate(binary: str, count: int, latency: float, rate: float, message: float) -> dict[int, float]:
    """Return the seconds of an allreduce by number of bytes."""
    costs = [f"{cost * 1e9:.3f}" for cost in (latency, 8 / rate, message)]
    command = [binary, "--calls", str(count), *costs, *map(str, SIZES)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(row["bytes"]): float(row["seconds"]) for row in csv.DictReader(io.StringIO(printed))}


def main() -> None:
    """Print both, size by size."""
    if why_not():
        sys.exit(why_not())
    binary, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with EmulatedHosts(count, RATE, LATENCY) as hosts:
        latency, rate, message = latency_of(hosts), rate_of(hosts, 4 << 20), message_cost_of(hosts)
        print(f"a byte takes {latency * 1e3:.2f} ms, one connection carries {rate / 1e6:.1f} Mbit/s,", end=" ")
        print(f"a message costs {message * 1e6:.1f} us of processor", flush=True)
        expected = simulate(binary, count, latency, rate, message)
        print("| float32 | measured | simulated | measured / simulated |\n| --- | --- | --- | --- |")
        with started([Contender("ours", "ours")], hosts, count) as ranks:
            for size in SIZES:
                taken = statistics.median(measured(ranks, size, TIMES, ROUNDS)["ours"])
                ratio = taken / expected[size]
                print(
                    f"| {size >> 10} KiB | {taken * 1e3:.1f} ms | {expected[size] * 1e3:.1f} ms | {ratio:.2f} |",
                    flush=True,
                )
    print(f"load {' '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
