"""The supervisor by itself, over its line: what happens at one and the same time, before it has looked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import living, processes_below, until

from hvd_kernel.cluster.door import Visitor, knock
from hvd_kernel.cluster.supervisor import Supervisor
from hvd_kernel.processes.json_lines import Line, is_ready
from hvd_kernel.processes.lifetime import children

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]

PATIENCE_S = 60.0
RANKS = 2


@dataclass
class Supervised:
    """A supervisor whose kernel is this test, with a process that is no mpiexec and does nothing."""

    process: subprocess.Popen[bytes]
    line: Line
    heard: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, word: str) -> Any:
        """Return what it says about something, the first that has not been asked for."""
        while not any(word in said for said in self.heard):
            assert is_ready(self.line.fileno(), PATIENCE_S), f"the supervisor said {self.heard} and nothing of {word!r}"
            self.heard += self.line.read()
            assert {"end": True} not in self.heard, f"the supervisor ended before it said {word!r}"
        said = next(said for said in self.heard if word in said)
        self.heard.remove(said)
        return said[word]

    def stopped(self) -> None:
        """Have it look at nothing until ``go_on``."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Have it find everything at once."""
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    folders = [tmp_path / "private", tmp_path / "shared"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    plan = {
        "mpiexec": ["sleep", "600"],
        "folders": [str(folder) for folder in folders],
        "address": "127.0.0.1",
        "ranks": RANKS,
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "hvd_kernel.cluster.supervisor", json.dumps(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=os.environ | {"IPYTHONDIR": str(folders[0] / "ipython")},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        one = Supervised(process, Line(process.stdout, process.stdin))
        everybody = {process.pid}
        try:
            one.hear("client")
            yield one
            everybody |= processes_below(process.pid)
            one.line.say({"stop": True})
            process.wait(PATIENCE_S)
        finally:
            process.kill()
        until(lambda: not living(everybody), "nothing of it is left")
        assert not any(folder.exists() for folder in folders)


def kill_and_wait(pid: int) -> None:
    """Return when it is dead, though nobody may have buried it."""
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    is_ready(ended, None)
    os.close(ended)


@pytest.mark.parametrize("beside", [[], [{"keep": {"name": "train", "place": "/", "n": RANKS, "hours": 1.0}}]])
def test_a4_a_replacement_is_replaced_before_its_death_was_seen(
    supervised: Supervised, beside: list[dict[str, Any]]
) -> None:
    """What is opened then, a pidfd or a door, has the number that was ready: who goes by it waits for a living one's end."""
    supervised.line.say({"replace": [0]})
    first = supervised.hear("joining")["0"]
    supervised.stopped()
    kill_and_wait(first)
    for word in ({"replace": [0]}, *beside):
        supervised.line.say(word)
    supervised.go_on()
    second = supervised.hear("joining")["0"]
    supervised.line.say({"replace": [1]})
    third = supervised.hear("joining")["1"]
    assert first not in children(supervised.process.pid), "not buried"
    assert living({first, second, third}) == {second, third}


def test_an_accident_of_the_thread_that_watches_leaves_nothing(supervised: Supervised) -> None:
    """Without it nobody would see the kernel's end."""
    supervised.line.say({"replace": [0]})
    supervised.hear("joining")
    supervised.line.say({"spares": "many"})
    assert supervised.process.wait(PATIENCE_S) == 0


class Hasty(Visitor):
    """A kernel that does something in the very moment after the look at its line."""

    def __init__(self, line: Line, act: Callable[[], None]) -> None:
        super().__init__(line, os.getpid())
        self._act = [act]

    @property
    def has_spoken(self) -> bool:
        """Whether it had, before it acted."""
        spoken = super().has_spoken
        while self._act:
            self._act.pop()()
        return spoken


def test_a_kernel_that_lets_go_and_comes_back_during_one_look_is_let_in(tmp_path: Path) -> None:
    """Its process lives, so the supervisor must not take it for another one that has the cluster."""
    ours, theirs = socket.socketpair()
    kernel, back = Line(theirs, theirs), []

    def come_back() -> None:
        kernel.close()
        back.append(knock(tmp_path)[0])

    plan = {"mpiexec": ["sleep", "600"], "folders": [str(tmp_path)], "ranks": RANKS}
    supervisor = Supervisor(plan, Hasty(Line(ours, ours), come_back))
    try:
        supervisor._keep({"name": "train", "place": "/", "n": RANKS, "hours": 1.0})
        assert kernel.read() == [{"kept": "train"}]
        for _ in range(2):
            supervisor._look()
        assert is_ready(back[0].fileno())
        assert [next(iter(word)) for word in back[0].read()] == ["welcome"]
    finally:
        supervisor._mpi.kill()
        supervisor._mpi.wait()
