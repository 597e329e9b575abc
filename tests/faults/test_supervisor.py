"""The supervisor alone, over its channel: simultaneous events that it has not yet noticed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hvdtest.cluster import living, processes_below, until

from hvd_kernel.cluster.supervisor import Supervisor
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.lifetime import children
from hvd_kernel.processes.limits import Limits

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]

PATIENCE_S = 60.0
M = TypeVar("M", bound=m.Message)
RANKS = 2


@dataclass
class Supervised:
    """A supervisor whose kernel is this test, with a process in the place of mpiexec that does nothing."""

    process: subprocess.Popen[bytes]
    channel: ControlChannel
    received: list[m.Message] = field(default_factory=list)

    def await_message(self, kind: type[M]) -> M:
        """Return the first message of a type that was not requested."""
        while not any(isinstance(each, kind) for each in self.received):
            assert is_ready(self.channel.fileno(), PATIENCE_S), f"the supervisor sent {self.received} and no {kind}"
            self.received += self.channel.receive()
            assert m.ChannelClosed() not in self.received, f"the supervisor ended before it sent {kind}"
        found = next(each for each in self.received if isinstance(each, kind))
        self.received.remove(found)
        return found

    def replace(self, rank: int) -> int:
        """Have a rank replaced, and return the process id of the replacement."""
        self.channel.send(m.ReplaceRanks([rank]))
        return self.await_message(m.RanksJoining).pids[rank]

    def stopped(self) -> None:
        """Pause the supervisor's loop until ``go_on``."""
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
        one = Supervised(process, ControlChannel(process.stdout, process.stdin))
        everybody = {process.pid}
        try:
            one.await_message(m.Connected)
            yield one
            everybody |= processes_below(process.pid)
            one.channel.send(m.Stop(1.5))
            process.wait(PATIENCE_S)
        finally:
            process.kill()
        until(lambda: not living(everybody), "nothing of it is left")
        assert not any(folder.exists() for folder in folders)


def kill_and_wait(pid: int) -> None:
    """Return when the process is dead, even if it has not been reaped."""
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    is_ready(ended, None)
    os.close(ended)


@pytest.mark.parametrize("beside", [[], [m.Detach("train", "/", RANKS, 1.0)]])
def test_a4_replacement_is_replaced_before_its_death_is_seen(supervised: Supervised, beside: list[m.Message]) -> None:
    """A descriptor opened meanwhile reuses the number that was ready: its callback would wait for a living process to exit."""
    first = supervised.replace(0)
    supervised.stopped()
    kill_and_wait(first)
    for message in (m.ReplaceRanks([0]), *beside):
        supervised.channel.send(message)
    supervised.go_on()
    second = supervised.await_message(m.RanksJoining).pids[0]
    third = supervised.replace(1)
    assert first not in children(supervised.process.pid), "not buried"
    assert living({first, second, third}) == {second, third}


def test_failure_of_the_watching_thread_leaves_no_process(supervised: Supervised) -> None:
    """No other thread would notice the end of the kernel."""
    supervised.replace(0)
    supervised.channel.send(m.LimitRank(os.getpid(), 0, Limits(cores=float("nan"))))
    assert supervised.process.wait(PATIENCE_S) == 0


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[tuple[Supervisor, ControlChannel]]:
    """Start a supervisor in this process, whose cluster is detached, and the channel of its kernel, which is this process."""
    ours, theirs = socket.socketpair()
    kernel = ControlChannel(theirs, theirs)
    plan = {"mpiexec": ["sleep", "600"], "folders": [str(tmp_path)], "ranks": RANKS}
    supervisor = Supervisor(plan, Controller(ControlChannel(ours, ours, is_agent=True), os.getpid()))
    try:
        supervisor._detach(m.Detach("train", "/", RANKS, 1.0))
        assert kernel.receive() == [m.Detached("train")]
        yield supervisor, kernel
    finally:
        supervisor.end(supervisor._mpiexec)


def test_kernel_may_reconnect_right_after_detaching(
    in_process: tuple[Supervisor, ControlChannel], tmp_path: Path
) -> None:
    """Its process is alive, so the supervisor must not mistake it for another kernel that owns the cluster."""
    supervisor, kernel = in_process
    kernel.close()
    back, _ = attachment.connect(tmp_path)
    supervisor._accept()  # before it has looked at the end of the first channel
    assert [type(message) for message in back.receive()] == [m.Attached]


def test_second_kernel_is_refused_with_the_firsts_pid(
    in_process: tuple[Supervisor, ControlChannel], tmp_path: Path
) -> None:
    supervisor, kernel = in_process
    second, _ = attachment.connect(tmp_path)
    supervisor._accept()
    assert second.receive() == [m.Refused(os.getpid())]
    assert second.receive() == [m.ChannelClosed()]
    kernel.send(m.Remember({"x": 1}))
    kernel.close()
    third, _ = attachment.connect(tmp_path)
    supervisor._accept()
    assert third.receive() == [m.Attached({}, {"x": 1}, [str(tmp_path)], 0)], "what the first one said last counts"
