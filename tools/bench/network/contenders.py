"""Libraries that sum arrays over the ranks of several hosts, one rank on each: all are up at once, and measured in turn."""

from __future__ import annotations

import json
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

from hvdtest.hosts import Hosts, address
from hvdtest.launch import clean_environment

RANK = Path(__file__).with_name("one_rank.py")
START_S, LOOK_S, ANSWER_S = 120.0, 0.5, 300.0
_PORT = 40_079


@dataclass(frozen=True)
class Contender:
    """``library``: of one_rank.py; ``python``: of an environment that has it; ``variables``: what its ranks find set."""

    name: str
    library: str
    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)


class Ranks:
    """The ranks of a contender, each on its host."""

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
        """Seconds of one sum of so many bytes, of the slowest rank; every rank's sum is checked."""
        for line in self._lines.values():
            line.write(json.dumps({"bytes": size, "times": times}) + "\n")
            line.flush()
        answers = {rank: json.loads(line.readline()) for rank, line in self._lines.items()}
        wrong = sorted(rank for rank, each in answers.items() if not each["right"])
        if wrong:
            raise AssertionError(f"wrong sums of {size} bytes on ranks {wrong}")
        return max(float(each["seconds"]) for each in answers.values())

    def close(self) -> None:
        """Have them end, and wait for it."""
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
    """All of them, by name."""
    with ExitStack() as stack:
        up = {}
        for number, contender in enumerate(contenders):
            up[contender.name] = Ranks(contender, hosts, size, _PORT + number)
            stack.callback(up[contender.name].close)
        yield up


def measured(ranks: dict[str, Ranks], size: int, times: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of one sum, round by round, in turn; the first round, which warms up, is not among them."""
    taken: dict[str, list[float]] = {name: [] for name in ranks}
    for _ in range(rounds + 1):
        for name, each in ranks.items():
            taken[name].append(each.sample(size, times))
    return {name: all_of_them[1:] for name, all_of_them in taken.items()}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median of the ratios of each round: above 1, ours is faster."""
    return statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
