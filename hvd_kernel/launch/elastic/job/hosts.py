"""Agents of an elastic job's hosts: started when a host gets its first worker, let go when it is to have none.

Nothing waits for an agent: what is to be sent to one that has not said hello yet is kept until it has. Two names of one
machine are two hosts, with an agent each.
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
"""ssh says so when it gives up on a host that does not answer; one whose ssh has ended it, or that was killed, not."""

Late = Callable[[], Message]
"""Makes a message when its agent is up: what it says depends on where that runs."""


class HostListener(Protocol):
    """Who hears of hosts: the job."""

    def heard(self, host: HostAgent, message: Message) -> None:
        """Take a message of a host's agent."""

    def lost(self, host: HostAgent, why: str, *, silent: bool) -> None:
        """Take note that an agent is gone, or has not come up, while it was wanted; ``silent``: no answer came."""


@dataclass(eq=False)
class HostAgent:
    """A host with its agent. ``workers``: those that have been started there and have not ended."""

    name: str
    handle: AgentHandle
    timer: Timer | None = None  # its agent is given up then
    workers: set[int] = field(default_factory=set)
    kept: list[Late] = field(default_factory=list)  # to be sent when it is up
    is_released: bool = False
    is_gone: bool = False

    @property
    def machine(self) -> str:
        """What its ranks go by where they look for those of the same host: two names of one machine are two hosts."""
        return self.name

    @property
    def card(self) -> dict[str, Any]:
        """How the host can be reached; empty: its agent has not spoken yet."""
        return self.handle.hello

    def send(self, message: Late) -> None:
        """Send a message, now or when the agent is up."""
        if self.is_gone:
            return
        if self.card:
            self.handle.send(message())
        else:
            self.kept.append(message)


class HostAgents:
    """All of them, by the names of their hosts."""

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
        """Those whose agents are there, and those that are let go."""
        return [*self._by_handle.values()]

    def get(self, name: str) -> HostAgent:
        """Return a host, whose agent is started where there is none, or where it is just let go."""
        if name not in self._by_name:
            handle = SpawnedAgent(self._agents, Host(name, 1), self._port, self._identity, "")
            timer = self._agents.loop.call_later(self._patience_s, lambda: self._late(handle))
            self._add(HostAgent(name, handle, timer))
        return self._by_name[name]

    def _add(self, host: HostAgent) -> None:
        self._by_name[host.name] = self._by_handle[host.handle] = host

    def release(self, name: str) -> None:
        """Let a host's agent go as soon as its workers have ended."""
        if host := self._by_name.pop(name, None):
            host.is_released = True
            self.settle(host)

    def settle(self, host: HostAgent) -> None:
        """Hang up on an agent that was let go, when its last worker has ended."""
        if host.is_released and not host.workers and not host.is_gone:
            host.handle.hang_up()

    def _late(self, handle: AgentHandle) -> None:
        if not handle.hello and handle in self._by_handle:
            self._give_up(self._by_handle[handle], ssh.silent(handle.host.name, self._patience_s, handle.said))

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
            kept, host.kept = host.kept, []
            for late in kept:
                host.send(late)
        else:
            self._listener.heard(host, message)

    def _give_up(self, host: HostAgent, why: ClusterError) -> None:
        if host.timer is not None:
            host.timer.cancel()
        silent = _NO_ANSWER in host.handle.stderr_tail()
        host.is_gone = True
        del self._by_handle[host.handle]
        if self._by_name.get(host.name) is host:
            del self._by_name[host.name]
        host.handle.discard()
        if host.workers or not host.is_released:
            self._listener.lost(host, str(why).removesuffix("."), silent=silent)


def _gone(host: HostAgent) -> ClusterError:
    said = host.handle.stderr_tail().strip()
    return ClusterError(f"its agent has ended{f'; its last output: {said}' if said else ''}")
