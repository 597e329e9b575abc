"""The launcher's handles of a job's agents (processes/agent.py): start, receive, stop."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers import ssh
from hvd_kernel.launch.placement import Host, is_local
from hvd_kernel.processes.channel.control_channel import CHUNK, ControlChannel, spawn
from hvd_kernel.processes.channel.messages import ChannelClosed, Hello, Message, Notice, SignalRanks, Stop
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.version import __version__

_MAX_OUTPUT = 4096  # characters of ssh's and the agent's own output that are kept for error messages
_EXIT_S = 5.0  # time for an agent to exit; killing one leaves the detached processes of its ranks
_EXIT_HERE_S = 20.0  # the same on this host, where no network can be the reason


class AgentHandle:
    """The channel to an agent, and its hello. Subclasses differ in how the agent is started and stopped."""

    def __init__(self, agents: Agents, host: Host, channel: ControlChannel) -> None:
        self._agents, self.host, self.channel = agents, host, channel
        self.remote = not is_local(host.name)
        self.hello: dict[str, Any] = {}
        self.holds_ranks = True  # False: it holds mpiexec
        self.gone = False
        self.output = ""  # the end of its, or ssh's, stderr
        self.patience = 0.0  # seconds for it to exit
        self.loss = ""  # why its ranks are dead if it is gone before them and ``lost`` returns None
        agents.every.append(self)
        agents.loop.add_reader(channel.fileno(), self._receive)

    def _receive(self) -> None:
        descriptor = self.channel.fileno()
        messages = self.channel.receive()
        self.gone = self.channel.closed
        if self.gone:
            self._agents.loop.remove_reader(descriptor)
        for message in messages:
            if isinstance(message, Hello):
                self.on_hello(message)
            elif isinstance(message, Notice):
                self._agents.notify(f"hvdrun: {self.host.name}: {message.text}\n".encode())
            self._agents.on_message(self, message)

    def on_hello(self, hello: Hello) -> None:
        """Record its first message."""
        self.hello = hello.card

    def send(self, message: Message) -> None:
        """Send it a message; if it is gone, a ChannelClosed follows."""
        self.channel.send(message)

    def release(self) -> None:
        """Release it if it waits until all ranks have exited."""

    def lost(self) -> ClusterError | None:
        """Explain that it is gone before its ranks; None: the launcher that started it explains that."""
        return None

    def hang_up(self) -> None:
        """Close the connection, on which it exits with all of its processes."""
        raise NotImplementedError

    def reap(self, seconds: float) -> None:
        """Wait for its exit, after ``hang_up``; kill it after this time."""

    def stderr_tail(self) -> str:
        """Return the end of its stderr."""
        return self.output

    def unreachable(self) -> ClusterError:
        """Explain why it did not start."""
        return ClusterError(f"{self.host.name} has not come up")

    def discard(self) -> None:
        """Close it and forget it, while the other agents continue."""
        self.hang_up()
        self._agents.every.remove(self)


class SpawnedAgent(AgentHandle):
    """An agent that the launcher has started itself, here or through ssh."""

    def __init__(self, agents: Agents, host: Host, port: int | None, identity: str | None, via: str) -> None:
        here = is_local(host.name)
        self.command = ssh.agent_command(host.name, local=here, port=port, identity=identity, via=via)
        self._process, channel = spawn(self.command, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        super().__init__(agents, host, channel)
        self._stderr = self._process.stderr
        agents.loop.add_reader(self._stderr.fileno(), self._read_stderr)

    def _read_stderr(self) -> bool:
        data = os.read(self._stderr.fileno(), CHUNK)
        self.output = (self.output + data.decode(errors="replace"))[-_MAX_OUTPUT:]
        if not data:
            self._agents.loop.remove_reader(self._stderr.fileno())
        return bool(data)

    def stderr_tail(self) -> str:
        """Return the end of its, or ssh's, stderr, including what is still in the pipe."""
        while select.select([self._stderr], [], [], 0)[0] and self._read_stderr():
            pass
        return self.output

    def unreachable(self) -> ClusterError:
        """Explain why it did not start."""
        while self._read_stderr():
            pass
        return ssh.unreachable(self.host.name, self.command, self._process.wait(), self.output)

    def lost(self) -> ClusterError | None:
        """Explain that it is gone before its ranks."""
        return ssh.lost(self.host.name, self.stderr_tail())

    def hang_up(self) -> None:
        """Close its stdin, on which it exits with all of its processes."""
        self.channel.end_sending()
        if self.hello:
            self.patience = _EXIT_S if self.remote else _EXIT_HERE_S
        else:  # without a hello it has started no process
            self._process.kill()

    def reap(self, seconds: float) -> None:
        """Wait for its exit; kill it after this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()
        self._stderr.close()

    def discard(self) -> None:
        """Stop it, wait for its exit and forget it, while the other agents continue."""
        for descriptor in (self.channel.fileno(), self._stderr.fileno()):
            self._agents.loop.remove_reader(descriptor)
        self.hang_up()
        self.reap(self.patience if self.gone else 0.0)
        self._agents.every.remove(self)


class Agents:
    """All agents of a job, and the loop in which their messages are received. The creator must call ``end``.

    ``notify`` writes a notice about a host to the user.
    """

    def __init__(self, notify: Callable[[bytes], object] = lambda _: None) -> None:
        self.notify = notify
        self.loop = EventLoop()
        self.every: list[AgentHandle] = []
        self.on_message: Callable[[AgentHandle, Message], None] = _ignore

    def run_until(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Run the loop until ``is_over()``, for this time at most; return whether it is over."""
        deadline = time.monotonic() + seconds
        timer = self.loop.call_later(seconds, lambda: None)  # ends the last turn
        while not is_over() and time.monotonic() < deadline:
            self.loop.turn()
        timer.cancel()
        return is_over()

    def start(
        self, hosts: Sequence[Host], port: int | None, identity: str | None, seconds: float, via: str = ""
    ) -> None:
        """Start an agent on every host and wait for each one's hello; ``via``: srun instead of ssh.

        Raises
        ------
        ClusterError
            Naming the host that cannot be used, and why.
        """
        self.on_message = _while_starting
        for host in hosts:
            SpawnedAgent(self, host, port, identity, via)
        if not self.run_until(lambda: all(agent.hello for agent in self.every), seconds):
            late = next(agent for agent in self.every if not agent.hello)
            raise ssh.silent(late.host.name, seconds, late.output)
        check_versions(self.every)

    def stop(self, grace: float) -> None:
        """Stop every rank that still runs: SIGTERM, then SIGKILL after ``grace`` seconds."""
        for agent in self.every:
            if agent.holds_ranks:
                agent.send(Stop(grace))

    def signal(self, number: int) -> None:
        """Send a signal to every rank that runs."""
        for agent in self.every:
            if agent.holds_ranks and agent.hello and not agent.gone:
                agent.send(SignalRanks(number))

    def end(self) -> None:
        """Stop all agents and wait for their exit; read their messages, because a full pipe would block them."""
        self.on_message = _ignore
        start = time.monotonic()
        for agent in self.every:
            agent.hang_up()
        for agent in self.every:
            remaining = max(0.0, start + agent.patience - time.monotonic())
            self.run_until(partial(attrgetter("gone"), agent), remaining)
            agent.reap(max(0.0, start + agent.patience - time.monotonic()))
        self.loop.close()


def _ignore(_agent: AgentHandle, _message: Message) -> None:
    pass


def _while_starting(agent: AgentHandle, message: Message) -> None:
    if isinstance(message, ChannelClosed) and isinstance(agent, SpawnedAgent):
        raise agent.unreachable()


def check_versions(agents: Sequence[AgentHandle]) -> None:
    """Refuse hosts with another version of this package.

    Raises
    ------
    ClusterError
        Naming one of them.
    """
    for agent in agents:
        if agent.hello["version"] != __version__:
            raise ssh.other_version(agent.host.name, agent.hello["version"], __version__)
