"""Hosts of an elastic job whose processes a cluster's engine starts: each agent that connects is one, with one slot.

An agent stands for one attempt of the engine to run a process. An attempt after a failure is another host, so the
blacklist entry of the first does not apply to it. Agents of one machine share ``Host.machine``: their ranks share
memory, and local_rank counts over all of them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import ExitStack
from functools import partial

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.launch.elastic.discovery.source import Feed
from hvd_kernel.launch.elastic.events import EndRequested, HostsFound
from hvd_kernel.launch.elastic.job.hosts import HostAgent, HostAgents, HostListener
from hvd_kernel.launch.launchers.agent_listener import AgentListener, ConnectedAgent
from hvd_kernel.launch.launchers.cluster_engine import ChangingEngine, Engine, EngineRun, Invitation
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.messages import Hello, Message

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
