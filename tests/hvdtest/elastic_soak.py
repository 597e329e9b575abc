"""Soak of an elastic job: random deaths, stops, leaves and joins, and at the end the parameters of a training without.

Terms.
  fault    what is done to the job at some step: kill, stop (for a moment), leave (SIGTERM to the rank in a host's last
           slot, which goes when the rank has left), go (a slot, or a host, of the discovery goes), come (all slots of a
           host are there again), cut (the connection to a host breaks: its agent is killed, and its ranks end)
  member   a rank of the newest generation: it has the state. A fault that would end the last of them waits until more
           have come back
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
KINDS = {"kill": 0.3, "stop": 0.2, "leave": 0.1, "go": 0.08, "come": 0.22, "cut": 0.1}
FULL = {"localhost": 2, "127.0.0.1": 2}
LEAST = 1  # ranks that train
LEAST_SLOTS = 2  # otherwise no rank may be killed
PATIENCE_S = 180.0
STEPS = 10
WHOLE = 0.35
SAMPLES = 64


Fault = Callable[["subprocess.Popen[bytes]"], Callable[[], bool]]
"""Does something to the job; returns what is waited for then."""


@dataclass
class Soaked:
    """Outcome of a soak."""

    faults: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)  # ranks that were killed, stopped or requested to leave
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
        found: dict[str, Any] = {
            "faults": dict(self.faults),
            "victims": dict(sorted(self.victims.items())),
            "resets": self.resets,
            "steps by size": dict(sorted(self.sizes.items())),
        }
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
        self.leaving: dict[int, str] = {}  # hosts by process ids of ranks that were requested to leave
        self.hosts = dict(hosts)
        self.moved_at = 0
        self.said = folder / "stderr"
        self.result = Soaked()
        self._write_hosts()
        script = folder / "hosts.sh"
        script.write_text(
            f"#!/bin/sh\ncp {folder}/hosts {folder}/asked && mv {folder}/asked {folder}/told && cat {folder}/told\n"
        )
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
            *(["--blacklist-cooldown-range", *cooldown.split()] if cooldown else ["--slot-failures", "1000"]),
        ]

    def run(self, faults: int, minutes: float = inf) -> Soaked:
        """Start the job, inject the faults that fit into the time, let it end, and compare the parameters."""
        end = time.monotonic() + 60 * minutes
        return self._trained(
            itertools.takewhile(lambda _: time.monotonic() < end, itertools.repeat(self._fault, faults))
        )

    def move(self, *hosts: dict[str, int]) -> Soaked:
        """Start on the first hosts, continue on the next ones, and compare the parameters."""
        return self._trained(partial(self._move, each) for each in hosts[1:])

    def laps(self, seconds: float, kills: Iterable[bool]) -> tuple[dict[bool, int], Soaked]:
        """Train so long for each of these, with a rank killed at the beginning of the lap or not.

        Returns how many steps there were in the laps with a kill and in those without. Each run of the one kind begins
        when all ranks are there.
        """
        counted = {True: 0, False: 0}
        todo: list[Fault] = []
        for kind, laps in itertools.groupby(kills):
            todo += [lambda _: self._is_whole, *(partial(self._lap, seconds, counted, kind) for _ in laps)]
        return counted, self._trained(todo)

    def _lap(
        self, seconds: float, counted: dict[bool, int], kills: bool, job: subprocess.Popen[bytes]
    ) -> Callable[[], bool]:
        begin, end = self._step(), time.monotonic() + seconds
        if kills:
            self._until(lambda: self._is_done("kill"), job)
            self.say(f"killed one after {begin} steps")

        def is_over() -> bool:
            if time.monotonic() < end:
                return False
            counted[kills] += self._step() - begin
            return True

        return is_over

    def _trained(self, faults: Iterable[Fault]) -> Soaked:
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
        """Inject a random fault once a rank would keep the state; return the condition to wait for."""
        kind = self._drawn()
        self._until(lambda: self._is_done(kind), job, f"a moment for {kind!r}, with slots {self.hosts}")
        self.result.faults[kind] += 1
        self.say(f"{self.result.faults.total():4d}  {kind:5s} at step {self._step()}, slots {dict(self.hosts)}")
        return self._recovered()

    def _drawn(self) -> str:
        """Return a kind of event; replace one that the current slots do not allow by an addition or a removal."""
        kind = self.chance.choices([*self.kinds], [*self.kinds.values()])[0]
        on_their_way = Counter(self.leaving.values())  # their slots will be gone when the fault's turn comes
        hosts = {host: slots - on_their_way[host] for host, slots in self.hosts.items()}
        if kind == "cut" and not all(hosts.values()):
            kind = "come"
        if kind in {"go", "leave"} and sum(hosts.values()) <= LEAST_SLOTS:
            kind = "come"
        return "go" if kind == "come" and hosts == FULL else kind

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

    def _is_done(self, kind: str) -> bool:
        """Inject one fault if it is possible now; return whether it was injected."""
        if kind in {"come", "go", "leave"} and (self.leaving or not self._is_told()):
            return False  # a slot has yet to go from the discovery, or what is back at once was never away
        match kind:
            case "come":
                return self._changes({host: slots for host, slots in FULL.items() if slots > self.hosts[host]})
            case "go":
                return self._changes({host: slots - self.chance.randint(1, slots) for host, slots in self._listed()})
            case "cut":
                return self._cuts()
            case "leave":
                last = {(host, slots - 1): host for host, slots in self._listed()}
                may = {pid: last[place] for pid, place in self._members().items() if place in last}
                return self._signals("leave", sorted(may), may)
            case _:
                return self._signals(kind, sorted(self._workers()), {})

    def _changes(self, choices: dict[str, int]) -> bool:
        """Change the answer of discovery for one of these hosts, while a rank with the state stays."""
        each = [self.hosts | {host: slots} for host, slots in sorted(choices.items())]
        may = [hosts for hosts in each if sum(hosts.values()) >= LEAST_SLOTS and self._has_survivors(hosts)]
        if may:
            self.hosts = self.chance.choice(may)
            self._write_hosts()
        return bool(may)

    def _cuts(self) -> bool:
        agents = self._agents()
        may = [host for host in sorted(agents) if self._has_survivors(self.hosts | {host: 0})]
        if may:
            os.kill(agents[self.chance.choice(may)], signal.SIGKILL)
        return bool(may)

    def _signals(self, kind: str, pids: list[int], leave: Mapping[int, str]) -> bool:
        """Kill one of these ranks, stop it for a moment, or request it to leave."""
        if kind != "stop":
            pids = [pid for pid in pids if self._has_survivors(self.hosts, pid)]
        if not pids:
            return False
        pid = self.chance.choice(pids)
        members = [*self._members()]
        try:
            os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[kind])
        except ProcessLookupError:
            return False
        if kind == "stop":
            time.sleep(0.3)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if kind == "kill" and pid in members:
            self.killed.append(time.time())
        if kind == "leave":
            self.leaving[pid] = leave[pid]
        self.result.victims[f"rank {members.index(pid)}" if pid in members else "one that starts"] += 1
        return True

    def _recovered(self) -> Callable[[], bool]:
        """Return the condition before the next fault: some steps, and usually a rank in each slot."""
        steps, whole = self._step() + STEPS, self.chance.random() < self.whole

        def recovered() -> bool:
            return self._step() >= steps and self._has_spares() and (not whole or self._is_whole())

        return recovered

    def _is_whole(self) -> bool:
        """Return whether each slot has a rank of the newest generation."""
        return not self.leaving and len(self._members().keys() & self._workers()) == sum(self.hosts.values())

    def _let_slots_go(self) -> None:
        """Update discovery after ranks that left on request."""
        for pid in self.leaving.keys() - self._workers():
            self.hosts[self.leaving.pop(pid)] -= 1
            self._write_hosts()

    def _until(self, what: Any, job: subprocess.Popen[bytes], name: str = "recovery") -> bool:
        limit = time.monotonic() + PATIENCE_S
        while not what():
            self._let_slots_go()
            if job.poll() is not None:
                return False
            assert time.monotonic() < limit, f"{name} has not come:\n{self.said.read_text()[-3000:]}"
            time.sleep(0.01)
        return True

    def _step(self) -> int:
        try:
            return int((self.folder / "step").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _has_spares(self) -> bool:
        """Return whether each host has its spare: the first, and one more for each that became a rank."""
        ready = len(re.findall(r"has 1 spare process ready", self.said.read_text()))
        return not self.warm or ready >= len(self.hosts) + len(self.killed)

    def _members(self) -> dict[int, tuple[str, int]]:
        """Host and slot of the ranks of the newest generation, in their order, by process id."""
        try:
            lines = [line.split() for line in (self.folder / "members").read_text().splitlines()]
        except FileNotFoundError:
            return {}
        return {int(pid): (host, int(slot)) for pid, host, slot in lines}

    def _listed(self) -> list[tuple[str, int]]:
        """Hosts that there are, with their slots."""
        return [(host, slots) for host, slots in sorted(self.hosts.items()) if slots]

    def _has_survivors(self, hosts: Mapping[str, int], victim: int = 0) -> bool:
        """Return whether a rank of the newest generation stays; otherwise the state would be lost."""
        workers = self._workers() - {victim} - self.leaving.keys()
        return any(slot < hosts[host] for pid, (host, slot) in self._members().items() if pid in workers)

    def _agents(self) -> dict[str, int]:
        """Process ids of the agents of the hosts that have ranks."""
        found = {}
        for pid, (host, _) in self._members().items():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                found[host] = int(re.findall(r"^PPid:\s(\d+)$", status, re.MULTILINE)[0])
        return found

    def _workers(self) -> set[int]:
        """Return the process ids of all ranks, including starting ones."""
        members = self._members()  # a former spare has started without its number
        return {pid for pid, variables in self._processes() if b"HVD_WORKER=" in variables or pid in members}

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """Return ranks and spares with their initial environment."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables, words = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
                if self.mark.encode() in variables and b"soaking.py" in words:
                    yield int(entry.name), variables

    def _listing(self) -> str:
        return "".join(f"{name}:{slots}\n" for name, slots in self.hosts.items() if slots)

    def _is_told(self) -> bool:
        """Return whether discovery has reported the current hosts."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "told").read_text() == self._listing()
        return False

    def _write_hosts(self) -> None:
        (self.folder / "hosts.new").write_text(self._listing())
        (self.folder / "hosts.new").rename(self.folder / "hosts")

    def _compare(self) -> None:
        import torch

        end = torch.load(self.folder / "end.pt", weights_only=False)
        result = self.result
        lines = map(json.loads, (self.folder / "history").read_text().splitlines())
        done = {number: (epoch, batches) for number, epoch, batches in lines}  # an undone step is repeated
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


def replayed(history: Iterable[tuple[int, list[list[int]]]]) -> dict[str, Any]:
    """Return the parameters after the same steps in one process, each step on the samples of its number of ranks."""
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
