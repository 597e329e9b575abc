"""The launcher's handles of a job's agents (processes/agent.py): start or accept, receive, stop.

The launcher starts one agent on each host, here directly and elsewhere through ssh or srun. MPI or a cluster engine
(launchers/cluster_engine.py) starts one per rank, which connects to the launcher. With MPI:

    hvdrun --pipe--> agent --> mpiexec --> rank_agent (for one rank) --> rank
       ^---------------- socket ---------------'

Output does not go through mpiexec, which splits it anywhere, mixes ranks within a line, and may lose it at an abort.
The socket is abstract (this host only); with other hosts it is TCP. A client must first prove that it holds the run's
secret (authentication.py). MPI's variables and descriptors are passed to the rank, and each agent lives until the
launcher disconnects: hvdrun ends the ranks, as without MPI.
"""

from __future__ import annotations

import os
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, Self

from hvd_kernel.errors import ClusterError
from hvd_kernel.jobs import here
from hvd_kernel.launch.placement import STEPS, Host, is_local
from hvd_kernel.processes.channel.authentication import Listening, ProvenChannel
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

    @property
    def title(self) -> str:
        """Return the name of its host for reports: as the user names it, or this host's own."""
        return self.host.name if self.remote or not self.hello else str(self.hello["name"])

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
        """Close the connection: the agent exits with all of its processes."""
        raise NotImplementedError

    def reap(self, seconds: float) -> None:
        """Wait for its exit, after ``hang_up``; kill it after this time."""

    def abandon(self) -> None:
        """Disconnect from it if it is on another host, which may not respond any more."""

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

    def __init__(
        self, agents: Agents, host: Host, port: int | None, identity: str | None, via: str, *, option: str = ""
    ) -> None:
        here = is_local(host.name)
        self.command = agent_command(host.name, local=here, port=port, identity=identity, via=via, option=option)
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
        return _unreachable(self.host.name, self.command, self._process.wait(), self.output)

    def lost(self) -> ClusterError | None:
        """Explain that it is gone before its ranks."""
        return _lost(self.host.name, self.stderr_tail())

    def hang_up(self) -> None:
        """Close its stdin: the agent exits with all of its processes."""
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
        for descriptor in (self.channel.fileno(), self._stderr.fileno()):
            self._agents.loop.remove_reader(descriptor)
        self.channel.close()
        self._stderr.close()

    def abandon(self) -> None:
        """Kill the ssh or srun that connects to it."""
        if self.remote:
            self._process.kill()

    def discard(self) -> None:
        """Stop it, wait for its exit and forget it, while the other agents continue."""
        self._agents.loop.remove_reader(self.channel.fileno())
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
        options = here.step_options(via, os.environ)
        for host in hosts:
            SpawnedAgent(self, host, port, identity, via, option=options.get(host.name, ""))
        if not self.run_until(lambda: all(agent.hello for agent in self.every), seconds):
            late = next(agent for agent in self.every if not agent.hello)
            raise silent_host_error(late.host.name, seconds, late.output)
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
            raise _other_version(agent.host.name, agent.hello["version"], __version__)


_AGENT = ("-P", "-m", "hvd_kernel.processes.agent")
# No prompts, since no user can answer them. A host that vanishes silently is noticed within half a minute.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3")
_NOT_FOUND, _SSH_FAILED = 127, 255
_UNRESOLVED = "Could not resolve hostname"
"""Part of ssh's output when the host's name has no address."""

UNRESOLVED = "its name has no address: correct it, or add it to the DNS or to /etc/hosts"
"""Why such a host cannot be used."""


def agent_command(
    host: str, *, local: bool, port: int | None, identity: str | None, via: str = "", option: str = ""
) -> list[str]:
    """Return the command that starts the agent of a host; ``via``: one of ``STEPS``, else ssh; ``option`` of that."""
    agent = [sys.executable, *_AGENT]
    if local:
        return agent
    if via:
        program, *flags = STEPS[via]
        return [program, *filter(None, [option]), *flags, host, *agent]
    return [*ssh(port, identity), host, f"exec {shlex.join(agent)}"]


def ssh(port: int | None, identity: str | None) -> list[str]:
    """Return the ssh command with its options."""
    command = ["ssh", "-T", *(word for option in _OPTIONS for word in ("-o", option))]
    if port is not None:
        command += ["-p", str(port)]
    if identity is not None:
        command += ["-i", identity]
    return command


def _unreachable(host: str, command: Sequence[str], status: int, output: str) -> ClusterError:
    """Explain why the agent of a host did not start."""
    by_hand = shlex.join([*command[: command.index(host)], host, "true"]) if host in command else ""
    step = command[0] if command[0] in STEPS else ""
    if "No module named" in output:
        reason = f"its {sys.executable} has no hvd_kernel of the same version: install it there, at the same path"
    elif status == _NOT_FOUND:
        reason = f"there is no {sys.executable} there: every host needs this Python environment at the same path"
    elif step:
        reason = f"{step} ended with status {status}: `{by_hand}` must work"
    elif by_hand and status == _SSH_FAILED and _UNRESOLVED in output:
        reason = UNRESOLVED
    elif by_hand and status == _SSH_FAILED:
        reason = f"ssh cannot log in there: `{by_hand}` must work without a password or a question"
    else:
        reason = f"its agent ended with status {status} before it said anything"
    return ClusterError(f"host {host} cannot be used: {reason}.{_quoted(output)}")


def silent_host_error(host: str, seconds: float, output: str) -> ClusterError:
    """Explain that a host's agent did not answer in time."""
    return ClusterError(
        f"host {host} did not answer within {seconds:g} s: check that it is up and that `ssh {host} true` works, "
        f"or raise --start-timeout.{_quoted(output)}"
    )


def _other_version(host: str, remote: str, local: str) -> ClusterError:
    """Explain that a host has another version of this package."""
    return ClusterError(f"host {host} has hvd_kernel {remote}, this one has {local}: install the same version on both.")


def _lost(host: str, output: str) -> ClusterError:
    """Explain that a host was lost while its ranks ran."""
    return ClusterError(f"host {host} was lost while its ranks ran; all ranks have been ended.{_quoted(output)}")


def silent_loss_error(host: str) -> ClusterError:
    """Explain that a host does not respond after ranks on other hosts have lost those on it."""
    return ClusterError(
        f"host {host} does not respond, and other ranks have lost those on it: it may have failed, or its network; all "
        "ranks have been ended."
    )


def _quoted(output: str) -> str:
    return f" It said:\n{output.strip()}" if output.strip() else ""


_LOST = "lost with the process that held it"


class Starter(Protocol):
    """Starts the agents, and explains why they do not connect. ``ready`` is the number of connected agents."""

    def on_message(self, agent: AgentHandle, message: Message, ready: int, np: int) -> None:
        """Handle a message of another agent, which holds mpiexec; raise if that has ended."""

    def timeout_error(self, seconds: float, ready: int, np: int) -> ClusterError:
        """Explain that the agents did not connect in time."""

    def wrong_ranks_error(self, np: int) -> ClusterError:
        """Explain that other ranks were started than requested."""


class ConnectedAgent(AgentHandle):
    """An agent that has connected. Its messages are ignored until it has proved that it holds the secret."""

    def __init__(self, agents: Agents, connection: socket.socket, secret: str) -> None:
        super().__init__(agents, Host("localhost", 1), ProvenChannel(connection, secret))
        self._is_far = connection.family == socket.AF_INET
        self.loss = _LOST

    @property
    def rank(self) -> int:
        """Return its rank, after its hello."""
        return int(self.hello["rank"])

    def on_hello(self, hello: Hello) -> None:
        """Record its first message."""
        super().on_hello(hello)
        if self._is_far:
            self.host = Host(self.hello["name"], 1)

    def release(self) -> None:
        """Disconnect: all ranks have exited."""
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection: the agent exits with all of its processes. Idempotent."""
        if not self.gone:
            self.gone = True
            self._agents.loop.remove_reader(self.channel.fileno())
        self.channel.close()


class AgentListener:
    """Listening socket to which agents connect while the ranks start."""

    def __init__(self, agents: Agents, secret: str, addresses: list[str]) -> None:
        """Listen on TCP if other hosts have to reach one of ``addresses``, else within this host."""
        self._agents, self._secret = agents, secret
        self._listening = Listening(agents.loop, "" if addresses else None, self._accept)
        self.address = self._listening.address(",".join(addresses))

    def __enter__(self) -> Self:
        self._listening.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def wait(self, starter: Starter, np: int, seconds: float) -> list[ConnectedAgent]:
        """Wait until the agent of every rank has connected and said hello; return them in rank order.

        Raises
        ------
        ClusterError
            The starter ended before that, is too slow, or started other ranks than requested.
        """

        def receive(agent: AgentHandle, message: Message) -> None:
            if not isinstance(agent, ConnectedAgent):
                starter.on_message(agent, message, self.ready, np)

        self._agents.on_message = receive
        if not self._agents.run_until(lambda: self.ready >= np, seconds):
            raise starter.timeout_error(seconds, self.ready, np)
        ready = sorted(self._ready_agents(), key=lambda agent: agent.rank)
        if [agent.rank for agent in ready] != list(range(np)):
            raise starter.wrong_ranks_error(np)
        check_versions(ready)
        for agent in [*self._agents.every]:
            if isinstance(agent, ConnectedAgent) and agent not in ready:  # a client without a proof so far
                agent.hang_up()
                self._agents.every.remove(agent)
        return ready

    @property
    def ready(self) -> int:
        """Return the number of connected agents whose hello has arrived."""
        return len(self._ready_agents())

    def _ready_agents(self) -> list[ConnectedAgent]:
        connected = [agent for agent in self._agents.every if isinstance(agent, ConnectedAgent)]
        return [agent for agent in connected if agent.hello and not agent.gone]

    def _accept(self, connection: socket.socket) -> None:
        ConnectedAgent(self._agents, connection, self._secret)
