"""Agents of a job as the launcher holds them: started, listened to, and ended (processes/agent.py is one of them)."""

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

_SAID = 4096  # bytes of ssh's and the agent's own words that are kept for messages
_END_S = 5.0  # that an agent may take to end; one that is killed leaves what its ranks have detached
_END_HERE_S = 20.0  # the same on this host, where no network can be the reason


class AgentHandle:
    """What the launcher has of an agent, however that was started: the channel to it, and its hello."""

    def __init__(self, agents: Agents, host: Host, channel: ControlChannel) -> None:
        self._agents, self.host, self.channel = agents, host, channel
        self.remote = not is_local(host.name)
        self.hello: dict[str, Any] = {}
        self.holds_ranks = True  # False: it holds mpiexec
        self.gone = False
        self.said = ""  # the end of what it, or ssh, has written besides
        self.patience = 0.0  # seconds that it may take to end
        self.loss = ""  # what has become of its ranks where it is gone before them and ``lost`` says nothing
        agents.every.append(self)
        agents.loop.add_reader(channel.fileno(), self._receive)

    def _receive(self) -> None:
        descriptor = self.channel.fileno()
        found = self.channel.receive()
        self.gone = self.channel.closed
        if self.gone:
            self._agents.loop.remove_reader(descriptor)
        for message in found:
            if isinstance(message, Hello):
                self.greet(message)
            elif isinstance(message, Notice):
                self._agents.say(f"hvdrun: {self.host.name}: {message.text}\n".encode())
            self._agents.on_message(self, message)

    def greet(self, hello: Hello) -> None:
        """Take note of its first message."""
        self.hello = hello.card

    def send(self, message: Message) -> None:
        """Send it a message; it may be gone, which a ChannelClosed will tell."""
        self.channel.send(message)

    def release(self) -> None:
        """All ranks have ended: let it go, where it waits for that."""

    def lost(self) -> ClusterError | None:
        """Explain its end before that of its ranks; None: who started it knows better."""
        return None

    def hang_up(self) -> None:
        """Have it end with all that it holds."""
        raise NotImplementedError

    def reap(self, seconds: float) -> None:
        """Wait until it has ended, after ``hang_up``; kill it after a time."""

    def stderr_tail(self) -> str:
        """Return the end of what it has written besides."""
        return self.said

    def unreachable(self) -> ClusterError:
        """Explain why it has not come up."""
        return ClusterError(f"{self.host.name} has not come up")

    def discard(self) -> None:
        """Leave nothing of it, while the others go on."""
        self.hang_up()
        self._agents.every.remove(self)


class SpawnedAgent(AgentHandle):
    """One that the launcher has started itself, here or through ssh."""

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
        self.said = (self.said + data.decode(errors="replace"))[-_SAID:]
        if not data:
            self._agents.loop.remove_reader(self._stderr.fileno())
        return bool(data)

    def stderr_tail(self) -> str:
        """Return the end of what it, or ssh, has written besides: also what came together with its end."""
        while select.select([self._stderr], [], [], 0)[0] and self._read_stderr():
            pass
        return self.said

    def unreachable(self) -> ClusterError:
        """Explain why it has not come up."""
        while self._read_stderr():
            pass
        return ssh.unreachable(self.host.name, self.command, self._process.wait(), self.said)

    def lost(self) -> ClusterError | None:
        """Explain its end before that of its ranks."""
        return ssh.lost(self.host.name, self.stderr_tail())

    def hang_up(self) -> None:
        """Close its stdin, by which it ends with all that it holds."""
        self.channel.end_sending()
        if self.hello:
            self.patience = _END_S if self.remote else _END_HERE_S
        else:  # who never spoke holds nothing
            self._process.kill()

    def reap(self, seconds: float) -> None:
        """Wait until it has ended; kill it after a time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()
        self._stderr.close()

    def discard(self) -> None:
        """Leave nothing of it, while the others go on."""
        for descriptor in (self.channel.fileno(), self._stderr.fileno()):
            self._agents.loop.remove_reader(descriptor)
        self.hang_up()
        self.reap(self.patience if self.gone else 0.0)
        self._agents.every.remove(self)


class Agents:
    """All agents of a job, and the loop in which their messages are received. Whoever makes it ends it.

    ``say`` takes what the user should know of a host.
    """

    def __init__(self, say: Callable[[bytes], object] = lambda _: None) -> None:
        self.say = say
        self.loop = EventLoop()
        self.every: list[AgentHandle] = []
        self.on_message: Callable[[AgentHandle, Message], None] = _ignore

    def run_until(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Hear the agents until then, or for a time; return whether it is over."""
        deadline = time.monotonic() + seconds
        timer = self.loop.call_later(seconds, lambda: None)  # the turn ends then
        while not is_over() and time.monotonic() < deadline:
            self.loop.turn()
        timer.cancel()
        return is_over()

    def start(
        self, hosts: Sequence[Host], port: int | None, identity: str | None, seconds: float, via: str = ""
    ) -> None:
        """Start an agent on every host and wait until each has said hello; ``via``: srun instead of ssh.

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
            raise ssh.silent(late.host.name, seconds, late.said)
        check_versions(self.every)

    def stop(self, grace: float) -> None:
        """Have every rank that still runs ended: SIGTERM, then SIGKILL after ``grace`` seconds."""
        for agent in self.every:
            if agent.holds_ranks:
                agent.send(Stop(grace))

    def signal(self, number: int) -> None:
        """Send a signal to every rank that runs."""
        for agent in self.every:
            if agent.holds_ranks and agent.hello and not agent.gone:
                agent.send(SignalRanks(number))

    def end(self) -> None:
        """Leave nothing. What an agent still says is read, which cannot end while its pipe is full."""
        self.on_message = _ignore
        begun = time.monotonic()
        for agent in self.every:
            agent.hang_up()
        for agent in self.every:
            left = max(0.0, begun + agent.patience - time.monotonic())
            self.run_until(partial(attrgetter("gone"), agent), left)
            agent.reap(max(0.0, begun + agent.patience - time.monotonic()))
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
