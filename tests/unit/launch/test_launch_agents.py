"""The launcher's side of agents: they are ended side by side, and stdin is read where this process may read it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from hvd_kernel.launch.agents import AgentHandle, Agents, SpawnedAgent
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.control_channel import ControlChannel


class Noted(AgentHandle):
    """A fake agent that records its calls, and ends when ``last`` has been stopped."""

    def __init__(self, agents: Agents, name: str, noted: list[str]) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__(agents, Host("localhost", 1), ControlChannel(ours, ours))
        self.name, self.noted, self.patience = name, noted, 100.0

    def hang_up(self) -> None:
        self.noted.append(f"hang up {self.name}")
        if self.name == "b":
            for agent in self._agents.every:
                assert isinstance(agent, Noted)
                agent.theirs.close()

    def reap(self, seconds: float) -> None:
        self.noted.append(f"reap {self.name}")
        assert self.gone
        self.channel.close()


def test_all_agents_are_notified_before_one_is_awaited() -> None:
    agents, noted = Agents(), list[str]()
    for name in "ab":
        Noted(agents, name, noted)
    agents.end()
    assert noted == ["hang up a", "hang up b", "reap a", "reap b"]


# A shell with job control, whose job reads the terminal in the background, and in the foreground on command.
SHELL = """
import os, signal
from hvd_kernel.launch import forwarding
from hvd_kernel.processes.event_loop import EventLoop

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
job = os.fork()
if job:
    os.setpgid(job, job)
    signal.sigwait({signal.SIGUSR1})
    os.tcsetpgrp(0, job)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(job, os.WUNTRACED)[1]))

class Rank0:
    def send(self, message):
        os.write(1, f"sent {message.data}\\n".encode())
        os._exit(0)

class Told(forwarding.StdinForwarder):
    def _may_read(self):
        ours = super()._may_read()
        os.write(1, b"" if ours else b"waits\\n")
        return ours

os.setpgid(0, 0)
loop = EventLoop()
forwarder = Told(0, Rank0(), loop)
loop.run()
"""


def test_stdin_is_not_read_in_the_background_of_a_terminal() -> None:
    """SIGTTIN stops a process that reads there, and the typed text belongs to the shell."""
    import pty

    shell, terminal = pty.fork()
    if shell == 0:
        os.execv(sys.executable, [sys.executable, "-P", "-c", SHELL])
    said = b""
    os.write(terminal, b"typed\n")
    while b"waits" not in said:
        said += os.read(terminal, 4096)
    assert b"sent" not in said
    os.kill(shell, signal.SIGUSR1)
    while b"sent b'typed\\n'" not in said:
        said += os.read(terminal, 4096)
    assert os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1]) == 0
    os.close(terminal)


HOLDS_STDERR = """#!/bin/sh
sleep 1000 1>&- &
echo $! > "$(dirname "$0")/$$.pid"
exec 1>&-
"""


def test_agents_end_although_their_stderr_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop still read the stderr of the first agent, closed by then: I/O operation on closed file."""
    (tmp_path / "ssh").write_text(HOLDS_STDERR)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    agents = Agents()
    for name in ("far", "farther"):
        SpawnedAgent(agents, Host(name, 1), None, None, "")
    agents.run_until(lambda: all(agent.gone for agent in agents.every), 60)
    agents.every[1].gone = False  # its exit has not been noticed yet
    agents.every[1].patience = 0.1
    try:
        agents.end()
    finally:
        for file in tmp_path.glob("*.pid"):
            os.kill(int(file.read_text()), signal.SIGKILL)


# Standard error of an agent, or of the ssh that runs it: its end comes with the channel's, and says whether its host was silent.

SSH = """#!/bin/sh
read -r line
echo 'Timeout, server far not responding.' >&2
"""


def test_last_output_of_ssh_is_read_after_the_channel_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    agents = Agents()
    agent = SpawnedAgent(agents, Host("far", 1), None, None, "")
    agent.channel.end_sending()
    agent._process.wait()
    assert agent.output == "", "nothing has been read"
    assert agent.stderr_tail() == "Timeout, server far not responding.\n"
    assert agent.stderr_tail() == "Timeout, server far not responding.\n"
    agents.end()
