"""Hosts of an elastic job whose processes a cluster's engine brings: each agent that connects is one, with one slot.

An agent stands for one attempt of the engine to run a process: an attempt after a failure is another host, so nothing
that is said of the one before counts for it. Agents of one machine are told so (``Host.machine``): their ranks share
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

_LET_GO_S = 10.0  # that the engine may take to notice that the job is over


class EngineHost(HostAgent):
    """One of them."""

    @property
    def machine(self) -> str:
        """Its machine, which it may share."""
        return str(self.card["host"])


class EngineHosts(HostAgents):
    """All of them, and the source that tells the driver of them.

    Parameters
    ----------
    agents, listener
        As in ``HostAgents``.
    feed
        Takes events for the driver.
    engine, env
        Who brings the processes, and the user's variables for them.
    np, patience_s
        So many have to be there after that time.
    processes
        So many the engine has been asked for.
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
        self._is_told = False  # the driver hears of changes
        self._attempts: Counter[int] = Counter()
        self._withdrawn: set[int] = set()  # processes that the engine is about to end
        self._had_enough = False
        self._going: HostAgent | None = None  # whose loss is being told
        self._open = ExitStack()

    def start(self) -> None:
        """Have the engine begin."""
        self._open.enter_context(self._listening)
        if isinstance(self._engine, ChangingEngine):
            soon = self._agents.loop.call_soon_threadsafe
            self._engine.withdraw = lambda index: soon(partial(self._withdraw, index))
        self._run = EngineRun(self._engine, self._invitation)
        self._run.watch(self._agents.loop, self._engine_ended)
        self._open.callback(self._run.unwatch, self._agents.loop)
        self._open.callback(self._agents.loop.call_later(self._patience_s, self._look_at_start).cancel)
        self._is_told = True

    def close(self) -> None:
        """Tell no more. Idempotent."""
        self._open.close()
        self._is_told = False

    def let_go(self) -> None:
        """Wait for the engine's end, when the agents have been left; processes that have yet to come are cancelled."""
        if self._run is not None:
            if len(self._attempts) == self._processes and not isinstance(self._engine, ChangingEngine):
                self._run.up()
            self._run.close(_LET_GO_S)

    def get(self, name: str) -> HostAgent:
        """Return a host."""
        found = self._by_name.get(name, self._going)
        assert found is not None, name
        return found

    def settle(self, host: HostAgent) -> None:
        """Hang up on an agent that was let go, when its last worker has ended."""
        if host.is_released and not host.workers and not host.is_gone:
            host.is_gone = True
            del self._by_handle[host.handle]
            host.handle.discard()
            self._tell()

    def _receive(self, handle: AgentHandle, message: Message) -> None:
        if isinstance(message, Hello) and isinstance(handle, ConnectedAgent) and self._is_told:
            if handle.rank in self._withdrawn:
                handle.discard()
                return
            attempt = self._attempts[handle.rank]
            self._attempts[handle.rank] += 1
            name = f"{handle.hello['name']}/{handle.rank}" + (f".{attempt}" if attempt else "")
            handle.host = Host(name, 1)
            self._add(EngineHost(name, handle))
            super()._receive(handle, message)
            self._tell()
        else:
            super()._receive(handle, message)

    def _withdraw(self, index: int) -> None:
        """Have the ranks leave a process; it is let go when they have."""
        self._withdrawn.add(index)
        leaving = [host for host in self._by_name.values() if self._index(host) == index]
        self._tell()
        for host in leaving:
            if not host.workers:
                self.release(host.name)

    @staticmethod
    def _index(host: HostAgent) -> int:
        """Return the number that the engine has given a host's process."""
        return int(host.card["rank"])

    def _give_up(self, host: HostAgent, why: ClusterError) -> None:
        if self._by_name.get(host.name) is host:
            self._going = self._by_name.pop(host.name)
            self._tell()  # before its loss, after which it is left out
        super()._give_up(host, why)
        self._going = None

    def _tell(self) -> None:
        if self._is_told:
            staying = [host for host in self._by_name.values() if self._index(host) not in self._withdrawn]
            hosts = [Host(host.name, 1, host.machine) for host in staying]
            self._had_enough |= len(hosts) >= self._np
            self._feed(HostsFound(tuple(hosts)))

    def _engine_ended(self) -> None:
        """Take note that no more processes will come; without an error they have been let go."""
        assert self._run is not None
        self._run.unwatch(self._agents.loop)
        if self._run.error is not None:
            self._feed(EndRequested(f"{self._engine.name} has ended: {self._engine.explain(self._run.error)}"))

    def _look_at_start(self) -> None:
        if self._run is not None and not self._had_enough:
            self._feed(EndRequested(str(self._run.slow(self._patience_s, len(self._by_name), self._np))))
