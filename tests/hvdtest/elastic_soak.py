"""Soak of an elastic job: random deaths, stops, leaves and joins, and at the end the parameters of a training without.

Words.
  fault   what is done to the job at some step: kill, stop (for a moment), leave (SIGTERM: it gives its place up), go (a
          host of the discovery goes, or loses a slot), come (the opposite), cut (the connection to a host breaks: its
          agent is killed, and its ranks end)
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from hvdtest.hvdrun import HVDRUN
from hvdtest.launch import clean_environment

FOLDER = Path(__file__).parents[1] / "elastic"
KINDS = {"kill": 0.45, "stop": 0.15, "leave": 0.05, "go": 0.15, "come": 0.15, "cut": 0.05}
FULL = {"localhost": 2, "127.0.0.1": 2}
LEAST = 1
PATIENCE_S = 180.0
STEPS = 10
MANY = 200
WHOLE = 0.7
SAMPLES = 64


@dataclass
class Soaked:
    """What came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    after_kill_s: list[float] = field(default_factory=list)  # until the next step of all
    growth_s: list[float] = field(
        default_factory=list
    )  # from the last step of a generation to the first of a larger one
    resets: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    same: bool = False
    lost: int = 0  # samples that an epoch has not seen
    more: int = 0  # that it has seen twice, beyond what makes ranks equal
    left: int = 0  # processes

    @property
    def is_good(self) -> bool:
        """Nothing was lost, and nothing is left."""
        return self.same and not (self.lost or self.more or self.left)

    def summary(self) -> dict[str, Any]:
        """As figures."""
        found: dict[str, Any] = {"faults": dict(self.faults), "resets": self.resets, "steps by size": dict(self.sizes)}
        for name, times in (("kill", self.after_kill_s), ("growth", self.growth_s)):
            if times:
                ordered = sorted(times)
                found |= {
                    f"{name}: p50 s": round(statistics.median(ordered), 2),
                    f"{name}: worst s": round(ordered[-1], 2),
                }
        return found | {
            "same parameters as without faults": self.same,
            "samples lost": self.lost,
            "samples repeated": self.more,
            "processes left": self.left,
        }


class Soak:
    """One job under faults."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        kinds: Mapping[str, float] = KINDS,
        cooldown: str = "1 1",
        whole: float = WHOLE,
        hosts: Mapping[str, int] = FULL,
        spares: int = 0,
        warm: bool = False,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.folder, self.chance, self.mark = folder, random.Random(seed), f"HVD_SOAK_{os.getpid()}_{seed}"
        self.kinds, self.whole, self.say = kinds, whole, say
        self.warm = warm  # a fault waits until each host has its spare
        self.killed: list[float] = []
        self.hosts = dict(hosts)
        self.moved_at = 0
        self.said = folder / "stderr"
        self.result = Soaked()
        self._write_hosts()
        script = folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        script.chmod(0o755)
        self.command = [
            *(
                *HVDRUN,
                "-np",
                str(sum(hosts.values())),
                "--min-np",
                str(LEAST),
                "--max-np",
                "4",
                "--host-discovery-script",
                str(script),
            ),
            *("--spares", str(spares), "--discovery-interval", "0.1"),
            *(["--blacklist-cooldown-range", *cooldown.split()] if cooldown else []),
        ]

    def run(self, faults: int, minutes: float = inf) -> Soaked:
        """Begin, do so many faults or as many as the time allows, let it end, and compare."""
        end = time.monotonic() + 60 * minutes
        return self._trained(
            itertools.takewhile(lambda _: time.monotonic() < end, itertools.repeat(self._fault, faults))
        )

    def move(self, *hosts: dict[str, int]) -> Soaked:
        """Begin where the first of these are, and go on where the next are; compare."""
        return self._trained(partial(self._move, each) for each in hosts[1:])

    def _trained(self, faults: Iterable[Callable[[subprocess.Popen[bytes]], Callable[[], bool]]]) -> Soaked:
        words = [sys.executable, "-P", str(FOLDER / "soaking.py"), str(self.folder), str(SAMPLES)]
        with self.said.open("w") as said:
            job = subprocess.Popen([*self.command, *words], env=self._env(), stdout=said, stderr=said)
            try:
                self._until(lambda: self._step() > 0 and self._has_spares(), job)
                for fault in faults:
                    if not self._until(fault(job), job):
                        break
                (self.folder / "enough").touch()
                assert job.wait(PATIENCE_S) == 0, self.said.read_text()[-3000:]
            finally:
                job.kill()
                job.wait()
        self._compare()
        return self.result

    def _env(self) -> dict[str, str]:
        return clean_environment(**{self.mark: "1", "HVD_STOP_ABORT": "5"})

    def _fault(self, job: subprocess.Popen[bytes]) -> Callable[[], bool]:
        """Do a random one; return what is waited for."""
        self._do(job, self.chance.choices([*self.kinds], [*self.kinds.values()])[0])
        return self._recovered()

    def _move(self, hosts: dict[str, int], _job: subprocess.Popen[bytes]) -> Callable[[], bool]:
        before = self._members()
        self.hosts = hosts
        self._write_hosts()

        def moved() -> bool:
            now, step = self._members(), self._step()
            self.moved_at = self.moved_at or (step if now != before and len(now) == sum(hosts.values()) else 0)
            return bool(self.moved_at) and step > self.moved_at + STEPS

        self.moved_at = 0
        return moved

    def _do(self, job: subprocess.Popen[bytes], kind: str) -> None:
        """Do one fault; what would leave too few slots is its opposite."""
        if kind == "go" and sum(self.hosts.values()) <= LEAST + 1:
            kind = "come"
        if kind == "come" and self.hosts == FULL:
            kind = "go"
        workers = self._workers()
        if len(workers.intersection(self._members())) < 2:
            kind = "stop" if kind in {"kill", "leave"} else kind
        change = 1 if kind == "come" else -1
        may = [name for name in FULL if 0 <= self.hosts[name] + change <= FULL[name]]
        may = [name for name in may if self._has_survivors(self.hosts | {name: self.hosts[name] + change})]
        agents = self._agents()
        cut = [host for host in agents if self._has_survivors(self.hosts | {host: 0})]
        if kind == "cut":
            kind = "cut" if cut else "stop"
        if kind == "cut":
            os.kill(agents[self.chance.choice(sorted(cut))], signal.SIGKILL)
        elif kind in {"go", "come"} and may:
            self.hosts[self.chance.choice(may)] += change
            self._write_hosts()
        else:
            kind = "stop" if kind in {"go", "come"} else kind
            may_end = [each for each in sorted(workers) if self._has_survivors(self.hosts, each)]
            kind = kind if may_end or kind == "stop" else "stop"
            pid = self.chance.choice(sorted(workers) if kind == "stop" else may_end)
            if kind == "kill" and pid in self._members():
                self.killed.append(time.time())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[kind])
                if kind == "stop":
                    time.sleep(0.3)
                    os.kill(pid, signal.SIGCONT)
        self.result.faults[kind] += 1
        self.say(f"{self.result.faults.total():4d}  {kind:5s} at step {self._step()}, slots {dict(self.hosts)}")

    def _recovered(self) -> Callable[[], bool]:
        """What is waited for before the next fault: some steps, and more often than not a rank in each slot.

        A slot whose worker was asked to leave stays empty until its host has gone: then more steps are enough.
        """
        steps, slots = self._step() + STEPS, sum(self.hosts.values())
        whole = self.chance.random() < self.whole

        def recovered() -> bool:
            done = self._step() - steps
            return (
                done >= 0
                and self._has_spares()
                and (not whole or done >= MANY or len(self._members() & self._workers()) == slots)
            )

        return recovered

    def _until(self, what: Any, job: subprocess.Popen[bytes]) -> bool:
        limit = time.monotonic() + PATIENCE_S
        while not what():
            if job.poll() is not None:
                return False
            assert time.monotonic() < limit, self.said.read_text()[-3000:]
            time.sleep(0.01)
        return True

    def _step(self) -> int:
        try:
            return int((self.folder / "step").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _has_spares(self) -> bool:
        """Tell whether each host has its spare: the first, and one more for each that has been taken."""
        ready = len(re.findall(r"has 1 spare process ready", self.said.read_text()))
        return not self.warm or ready >= len(self.hosts) + len(self.killed)

    def _members(self) -> set[int]:
        """Process ids of the ranks of the newest generation."""
        try:
            return {int(word) for word in (self.folder / "members").read_text().split()}
        except FileNotFoundError:
            return set()

    def _has_survivors(self, hosts: Mapping[str, int], victim: int = 0) -> bool:
        """Tell whether a rank of the newest generation keeps its slot, or nobody would have the state."""
        places = map(_place, self._members() & self._workers() - {victim})
        return any(slot < hosts[host] for host, slot in filter(None, places))

    def _agents(self) -> dict[str, int]:
        """Process ids of the agents of the hosts that have ranks."""
        found = {}
        for pid in self._workers():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if place := _place(pid):
                    found[place[0]] = int(re.findall(r"^PPid:\s(\d+)$", status, re.MULTILINE)[0])
        return found

    def _workers(self) -> set[int]:
        """Process ids of all ranks, those that only start too."""
        members = self._members()  # one that was a spare has begun without its number
        return {pid for pid, variables in self._processes() if b"HVD_WORKER=" in variables or pid in members}

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """Ranks and spares, with the variables that they have begun with."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables, words = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
                if self.mark.encode() in variables and b"soaking.py" in words:
                    yield int(entry.name), variables

    def _write_hosts(self) -> None:
        text = "".join(f"{name}:{slots}\n" for name, slots in self.hosts.items() if slots)
        (self.folder / "hosts.new").write_text(text)
        (self.folder / "hosts.new").rename(self.folder / "hosts")

    def _compare(self) -> None:
        import torch

        end = torch.load(self.folder / "end.pt", weights_only=False)
        result = self.result
        lines = map(json.loads, (self.folder / "history").read_text().splitlines())
        done = {number: (epoch, batches) for number, epoch, batches in lines}  # one that was undone is done again
        history = [done[number] for number in range(1, end["steps"] + 1)]
        again = replayed(history)
        result.same = all(torch.equal(end["model"][name], again[name]) for name in again)
        result.sizes = Counter(len(batches) for _, batches in history)
        result.resets = len(re.findall(r"generation \d+ begins", self.said.read_text()))
        for _, steps in itertools.groupby(history, key=lambda step: step[0]):
            ranks = [batches for _, batches in steps]
            seen = Counter(each for batches in ranks for batch in batches for each in batch)
            result.lost += SAMPLES - len(seen)
            padded = max(map(len, ranks)) - 1
            result.more += max(0, sum(seen.values()) - SAMPLES - padded)
        result.left = len([*self._processes()])
        self._measure()

    def _measure(self) -> None:
        """Find the pauses between generations: each line is the time of a step, the size and the generation."""
        steps = [line.split() for line in (self.folder / "times").read_text().splitlines()]
        at, sizes, generations = [[float(step[n]) for step in steps] for n in range(3)]
        for killed in self.killed:
            before = max((each for each, its in zip(at, generations, strict=True) if each < killed), default=killed)
            old = generations[at.index(before)] if before in at else 0
            after = next((each for each, its in zip(at, generations, strict=True) if its > old and each > killed), None)
            if after is not None:
                self.result.after_kill_s.append(after - killed)
        for number in range(1, len(steps)):
            if sizes[number] > sizes[number - 1]:
                self.result.growth_s.append(at[number] - at[number - 1])


def _place(pid: int) -> tuple[str, int] | None:
    """Return the host and slot of a rank; None: it has ended."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return None
    found = dict(each.split("=", 1) for each in variables if "=" in each)
    return (found["HOROVOD_HOSTNAME"], int(found["HVD_SLOT"])) if "HVD_SLOT" in found else None


def replayed(history: Iterable[tuple[int, list[list[int]]]]) -> dict[str, Any]:
    """Parameters of the same steps in one process, without a rank: each on the samples that so many ranks had."""
    import torch

    sys.path.append(str(FOLDER))
    training: Any = importlib.import_module("soaking")
    torch.set_num_threads(1)
    model, images, labels = training.model_and_data(SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, batches in history:
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for samples in batches:
            training.gradient(model, images, labels, samples)
            for total, parameter in zip(sums, model.parameters(), strict=True):
                total.add_(parameter.grad)
        for total, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = total / len(batches)
        optimizer.step()
    return dict(model.state_dict())
