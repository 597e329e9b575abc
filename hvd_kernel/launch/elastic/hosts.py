"""Agents of an elastic job's hosts: started when a host gets its first worker, released when it is to have none.

The job never waits for an agent: messages to one that has not said hello yet are queued. Two names of one machine are
two hosts, with an agent each.

If a cluster's engine starts the processes, each agent that connects is a host with one slot. It stands for one attempt
of the engine to run a process. An attempt after a failure is another host, so the blacklist entry of the first does not
apply to it. Agents of one machine share ``Host.machine``: their ranks share memory, and local_rank counts over all of
them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import (
    AgentHandle,
    AgentListener,
    Agents,
    ConnectedAgent,
    SpawnedAgent,
    check_versions,
    silent_host_error,
)
from hvd_kernel.launch.elastic.discovery import Feed
from hvd_kernel.launch.elastic.events import EndRequested, HostsFound
from hvd_kernel.launch.launchers.cluster_engine import ChangingEngine, Engine, EngineRun, Invitation
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
            self._give_up(self._by_handle[handle], silent_host_error(handle.host.name, self._patience_s, handle.output))

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


# Processes of an engine as hosts


_CLOSE_S = 10.0  # time for the engine to notice that the job is over


class EngineHost(HostAgent):
    """A process of the engine as a host."""

    @property
    def machine(self) -> str:
        """Return its machine, which several processes may share."""
        return str(self.card["host"])


class EngineHosts(HostAgents):
    """The processes of an engine as hosts, and the source that reports them to the driver.

    Parameters
    ----------
    agents, listener
        As in ``HostAgents``.
    feed
        Passes an event to the driver.
    engine, env
        What starts the processes, and the user's variables for them.
    np, patience_s
        The number of processes that must have connected after this time.
    processes
        The number of processes requested from the engine.
    """

    def __init__(
        self,
        agents: Agents,
        listener: HostListener,
        feed: Feed,
        engine: Engine,
        env: dict[str, str],
        *,
        np: int,
        processes: int,
        patience_s: float,
    ) -> None:
        super().__init__(agents, listener, port=None, identity=None, patience_s=patience_s)
        self._feed, self._engine, self._np, self._processes = feed, engine, np, processes
        secret = secrets.token_hex(32)
        self._listening = AgentListener(agents, secret, [*engine.addresses])
        self._invitation = Invitation(self._listening.address, secret, env, engine.hidden)
        self._run: EngineRun | None = None
        self._reports = False  # changes are reported to the driver
        self._attempts: Counter[int] = Counter()
        self._withdrawn: set[int] = set()  # processes that the engine is about to stop
        self._had_enough = False
        self._losing: HostAgent | None = None  # the host whose loss is being reported
        self._open = ExitStack()

    def start(self) -> None:
        """Start the engine."""
        self._open.enter_context(self._listening)
        if isinstance(self._engine, ChangingEngine):
            soon = self._agents.loop.call_soon_threadsafe
            self._engine.withdraw = lambda index: soon(partial(self._withdraw, index))
        self._run = EngineRun(self._engine, self._invitation)
        self._run.watch(self._agents.loop, self._engine_ended)
        self._open.callback(self._run.unwatch, self._agents.loop)
        self._open.callback(self._agents.loop.call_later(self._patience_s, self._check_start).cancel)
        self._reports = True

    def close(self) -> None:
        """Report no further changes. Idempotent."""
        self._open.close()
        self._reports = False

    def wait_for_engine(self) -> None:
        """Wait until the engine has ended, after the agents were closed; cancel it if processes have not connected."""
        if self._run is not None:
            if len(self._attempts) == self._processes and not isinstance(self._engine, ChangingEngine):
                self._run.up()
            self._run.close(_CLOSE_S)

    def get(self, name: str) -> HostAgent:
        """Return a host."""
        host = self._by_name.get(name, self._losing)
        assert host is not None, name
        return host

    def disconnect_if_idle(self, host: HostAgent) -> None:
        """Disconnect a released agent if its last worker has exited, and report that."""
        if host.is_released and not host.workers and not host.is_gone:
            host.is_gone = True
            del self._by_handle[host.handle]
            host.handle.discard()
            self._report()

    def _receive(self, handle: AgentHandle, message: Message) -> None:
        if isinstance(message, Hello) and isinstance(handle, ConnectedAgent) and self._reports:
            if handle.rank in self._withdrawn:
                handle.discard()
                return
            attempt = self._attempts[handle.rank]
            self._attempts[handle.rank] += 1
            name = f"{handle.hello['name']}/{handle.rank}" + (f".{attempt}" if attempt else "")
            handle.host = Host(name, 1)
            self._add(EngineHost(name, handle))
            super()._receive(handle, message)
            self._report()
        else:
            super()._receive(handle, message)

    def _withdraw(self, index: int) -> None:
        """Make the ranks leave a process; release it when they have."""
        self._withdrawn.add(index)
        leaving = [host for host in self._by_name.values() if self._index(host) == index]
        self._report()
        for host in leaving:
            if not host.workers:
                self.release(host.name)

    @staticmethod
    def _index(host: HostAgent) -> int:
        """Return the engine's number of a host's process."""
        return int(host.card["rank"])

    def _give_up(self, host: HostAgent, error: ClusterError) -> None:
        if self._by_name.get(host.name) is host:
            self._losing = self._by_name.pop(host.name)
            self._report()  # first: after its loss the blacklist would exclude it
        super()._give_up(host, error)
        self._losing = None

    def _report(self) -> None:
        if self._reports:
            staying = [host for host in self._by_name.values() if self._index(host) not in self._withdrawn]
            hosts = [Host(host.name, 1, host.machine) for host in staying]
            self._had_enough |= len(hosts) >= self._np
            self._feed(HostsFound(tuple(hosts)))

    def _engine_ended(self) -> None:
        """End the job if the engine has failed; without an error its processes have been released."""
        assert self._run is not None
        self._run.unwatch(self._agents.loop)
        if self._run.error is not None:
            self._feed(EndRequested(f"{self._engine.name} has ended: {self._engine.explain(self._run.error)}"))

    def _check_start(self) -> None:
        if self._run is not None and not self._had_enough:
            self._feed(EndRequested(str(self._run.timeout_error(self._patience_s, len(self._by_name), self._np))))
