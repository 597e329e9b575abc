"""Agents of an elastic job's hosts: started when a host gets its first worker, released when it is to have none.

The job never waits for an agent: messages to one that has not said hello yet are queued. Two names of one machine are
two hosts, with an agent each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle, Agents, SpawnedAgent, check_versions
from hvd_kernel.launch.launchers import ssh
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.messages import ChannelClosed, Hello, Message
from hvd_kernel.processes.event_loop import Timer

_NO_ANSWER = "not responding"
"""Part of ssh's output when a host stops answering; absent if the host closed the connection or ssh was killed."""

MessageFactory = Callable[[], Message]
"""Makes a message when the agent is up: its content depends on where the agent runs."""


class HostListener(Protocol):
    """Receives messages and losses of hosts: the job."""

    def on_message(self, host: HostAgent, message: Message) -> None:
        """Handle a message of a host's agent."""

    def on_lost(self, host: HostAgent, reason: str, *, silent: bool) -> None:
        """Handle the loss of an agent that was needed, or that it did not start; ``silent``: no answer came."""


@dataclass(eq=False)
class HostAgent:
    """A host with its agent. ``workers``: running workers on it, by number."""

    name: str
    handle: AgentHandle
    timer: Timer | None = None  # limits the time until its hello
    workers: set[int] = field(default_factory=set)
    queued: list[MessageFactory] = field(default_factory=list)  # to be sent when the agent is up
    is_released: bool = False
    is_gone: bool = False

    @property
    def machine(self) -> str:
        """Return what identifies the machine to its ranks (HVD_HOST); here two names of one machine are two hosts."""
        return self.name

    @property
    def card(self) -> dict[str, Any]:
        """Return how the host can be reached; empty before the agent's hello."""
        return self.handle.hello

    def send(self, message: MessageFactory) -> None:
        """Send a message, now or when the agent is up."""
        if self.is_gone:
            return
        if self.card:
            self.handle.send(message())
        else:
            self.queued.append(message)


class HostAgents:
    """The agents of a job by the names of their hosts."""

    def __init__(
        self, agents: Agents, listener: HostListener, *, port: int | None, identity: str | None, patience_s: float
    ) -> None:
        self._agents, self._listener = agents, listener
        self._port, self._identity, self._patience_s = port, identity, patience_s
        self._by_handle: dict[AgentHandle, HostAgent] = {}
        self._by_name: dict[str, HostAgent] = {}
        agents.on_message = self._receive

    @property
    def all(self) -> list[HostAgent]:
        """Return the hosts whose agents are connected, including released ones."""
        return [*self._by_handle.values()]

    def get(self, name: str) -> HostAgent:
        """Return a host; start an agent if it has none, or only one that is being released."""
        if name not in self._by_name:
            handle = SpawnedAgent(self._agents, Host(name, 1), self._port, self._identity, "")
            timer = self._agents.loop.call_later(self._patience_s, lambda: self._timed_out(handle))
            self._add(HostAgent(name, handle, timer))
        return self._by_name[name]

    def _add(self, host: HostAgent) -> None:
        self._by_name[host.name] = self._by_handle[host.handle] = host

    def release(self, name: str) -> None:
        """Release a host's agent as soon as its workers have exited."""
        if host := self._by_name.pop(name, None):
            host.is_released = True
            self.disconnect_if_idle(host)

    def disconnect_if_idle(self, host: HostAgent) -> None:
        """Disconnect a released agent if its last worker has exited."""
        if host.is_released and not host.workers and not host.is_gone:
            host.handle.hang_up()

    def _timed_out(self, handle: AgentHandle) -> None:
        if not handle.hello and handle in self._by_handle:
            self._give_up(self._by_handle[handle], ssh.silent(handle.host.name, self._patience_s, handle.output))

    def _receive(self, handle: AgentHandle, message: Message) -> None:
        host = self._by_handle.get(handle)
        if host is None:
            return
        if isinstance(message, ChannelClosed):
            self._give_up(host, _gone(host) if host.card else host.handle.unreachable())
        elif isinstance(message, Hello):
            if host.timer is not None:
                host.timer.cancel()
            try:
                check_versions([handle])
            except ClusterError as error:
                self._give_up(host, error)
                return
            queued, host.queued = host.queued, []
            for factory in queued:
                host.send(factory)
        else:
            self._listener.on_message(host, message)

    def _give_up(self, host: HostAgent, error: ClusterError) -> None:
        if host.timer is not None:
            host.timer.cancel()
        silent = _NO_ANSWER in host.handle.stderr_tail()
        host.is_gone = True
        del self._by_handle[host.handle]
        if self._by_name.get(host.name) is host:
            del self._by_name[host.name]
        host.handle.discard()
        if host.workers or not host.is_released:
            self._listener.on_lost(host, str(error).removesuffix("."), silent=silent)


def _gone(host: HostAgent) -> ClusterError:
    output = host.handle.stderr_tail().strip()
    return ClusterError(f"its agent has ended{f'; its last output: {output}' if output else ''}")
