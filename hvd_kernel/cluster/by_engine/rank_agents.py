"""Agents of a cluster's ranks, as its supervisor has them: they connect, get numbers, and start a process when told.

    engine's process --stdin--> agent (processes/engine_agent.py) --PDEATHSIG--> rank
                                  ^-- socket: proof, StartRanks, Introduce, RankExited --> supervisor

An agent outlives its rank's process, and starts the one that replaces it. One that is gone may be followed by another
of the same index, where the engine brings it.

Terms.
  index   the number that the engine has given its process; ranks are numbered host by host, from that of index 0
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.authentication import ProvenChannel
from hvd_kernel.processes.channel.listening import Listening
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.mps.decision import sharing
from hvd_kernel.settings.network import reached
from hvd_kernel.version import __version__

_LOOPBACK = "127.0.0.1"
_LOST = "it was lost with the process of {engine} that held it"
_OTHER = "its host {host} has hvd_kernel {theirs}, this one has {ours}: install the same version on both"
_RANK = ("-P", "-m", "hvd_kernel.worker", "held")

Tell = Callable[[m.Message], None]


class RankAgent:
    """One of them. Until it has proved to have the secret, nothing that it says counts."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        self.channel = ProvenChannel(connection, secret)
        self.descriptor = self.channel.fileno()
        self.card: dict[str, Any] = {}
        self.runs = False  # a process of a rank's
        is_far = connection.family == socket.AF_INET
        self.calls_at = connection.getsockname()[0] if is_far else _LOOPBACK  # where it reaches this host

    @property
    def index(self) -> int:
        """Which process of the engine's it is."""
        return int(self.card["rank"])


class RankAgents:
    """All of a cluster's. They belong to the thread of the loop.

    Parameters
    ----------
    loop
        Calls back when an agent speaks.
    plan
        ``ranks``: how many; ``engine``: its name; ``address``: of this host, where agents connect, "": on this host
        alone; ``env``: variables of the ranks.
    tell
        Takes what the kernel has to know: RankExited, RankKilled before it, StartFailed.
    """

    def __init__(self, loop: EventLoop, secret: str, plan: Mapping[str, Any], tell: Tell) -> None:
        self._loop, self._secret, self._tell = loop, secret, tell
        self._np, self._engine, self._env = int(plan["ranks"]), str(plan["engine"]), dict(plan["env"])
        self._connection: dict[str, Any] = {}  # of the controller, as ranks need it
        self._every: list[RankAgent] = []
        self._by_index: dict[int, RankAgent] = {}  # those that have said hello
        self._rank_of: dict[int, int] = {}  # index -> rank, once all are there
        self._wanted: set[int] = set()  # ranks whose agent is waited for
        self._over = ""  # why no more agents will come
        self._run = secrets.token_hex(16)  # by which the agents of a host share an MPS daemon
        at = str(plan["address"])
        self._listening = Listening(loop, at or None, self._accept)
        self.address = self._listening.address(at)
        self._listening.open()

    @property
    def running(self) -> bool:
        """Whether a rank's process has not ended."""
        return any(agent.runs for agent in self._every)

    def connect(self, connection: Mapping[str, Any]) -> None:
        """Take where the controller is, and start the ranks as soon as their agents are there."""
        self._connection = {name: value for name, value in connection.items() if name != "key"}
        self._begin()

    def replace(self, ranks: Iterable[int]) -> None:
        """Start processes in these ranks' places, at once or when an agent is there for them."""
        for rank in ranks:
            agent = self._agent(rank)
            if agent is not None:
                self._start(rank, agent)
            elif self._over:
                self._tell(m.StartFailed(rank, self._over))
            else:
                self._wanted.add(rank)

    def end(self, rank: int, grace: float) -> None:
        """Have a rank's process ended; the others go on."""
        if agent := self._agent(rank):
            agent.channel.send(m.StopRank(rank, grace))

    def engine_ended(self, why: str) -> None:
        """Take note that no more agents will come."""
        self._over = f"{self._engine} has ended{f': {why}' if why else ''}"
        if not self._rank_of:
            there = len(self._by_index)
            self._tell(m.StartFailed(0, f"{self._over} (when {there} of {self._np} ranks were up)"))
        for rank in self._wanted:
            self._tell(m.StartFailed(rank, self._over))

    def stop(self, grace: float) -> None:
        """Ask all ranks to end."""
        for agent in self._every:
            if agent.runs:
                agent.channel.send(m.Stop(grace))

    def close(self) -> None:
        """Hang up, by which every agent ends with what it holds."""
        self._listening.close()
        for agent in [*self._every]:
            self._let_go(agent)

    def _accept(self, connection: socket.socket) -> None:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        agent = RankAgent(connection, self._secret)
        self._every.append(agent)
        self._loop.add_reader(agent.descriptor, lambda: self._receive(agent))

    def _receive(self, agent: RankAgent) -> None:
        for message in agent.channel.receive():
            match message:
                case m.Hello(card):
                    self._greet(agent, card)
                case m.RankExited():
                    agent.runs = False
                    self._tell(message)
                case m.RankKilled() | m.StartFailed() | m.Notice():
                    self._tell(message)
                case m.Output(data=data):
                    os.write(sys.stderr.fileno(), data)  # the cluster's log
        if agent.channel.closed:
            self._lose(agent)

    def _greet(self, agent: RankAgent, card: dict[str, Any]) -> None:
        agent.card = card
        if card["version"] != __version__:
            said = _OTHER.format(host=card["name"], theirs=card["version"], ours=__version__)
            self._tell(m.StartFailed(agent.index, said))
            return
        self._by_index[agent.index] = agent
        rank = self._rank_of.get(agent.index)
        if rank in self._wanted:
            self._wanted.discard(rank)
            self._start(rank, agent)
        self._begin()

    def _begin(self) -> None:
        """Give the ranks numbers and start them, when everything is there."""
        if self._rank_of or not self._connection or len(self._by_index) < self._np:
            return
        names = sorted({str(each.card["host"]) for each in self._by_index.values()})
        first = names.index(str(self._by_index[0].card["host"]))
        order = names[first:] + names[:first]
        indices = sorted(self._by_index, key=lambda each: (order.index(str(self._by_index[each].card["host"])), each))
        self._rank_of = {index: rank for rank, index in enumerate(indices)}
        for index, rank in self._rank_of.items():
            self._start(rank, self._by_index[index])

    def _start(self, rank: int, agent: RankAgent) -> None:
        cards = [each.card for each in self._by_index.values()]
        plan = m.StartRanks(
            command=[agent.card["python"], *_RANK],
            cwd=agent.card["cwd"],
            env=self._env,
            ranks=[m.RankPlan(rank, reads_stdin=True)],
            inherit_env=True,
            ranks_on_host=sum(card["machine"] == agent.card["machine"] for card in cards),
            mps_ranks=sharing(agent.card, cards),
            mps_run=self._run,
            stays=True,
        )
        is_alone = all(card["machine"] == cards[0]["machine"] for card in cards)
        address = _LOOPBACK if is_alone else reached(agent.card, cards) or str(agent.card["name"])
        where = {"interface": f"tcp://{agent.calls_at}", "location": agent.calls_at, "rendezvous": address}
        agent.runs = True
        agent.channel.send(plan)
        agent.channel.send(m.Introduce(rank, self._np, self._connection | where))

    def _agent(self, rank: int) -> RankAgent | None:
        return next((self._by_index.get(index) for index, each in self._rank_of.items() if each == rank), None)

    def _lose(self, agent: RankAgent) -> None:
        self._let_go(agent)
        if agent.card and self._by_index.get(agent.index) is agent:
            del self._by_index[agent.index]
            rank = self._rank_of.get(agent.index)
            if agent.runs and rank is not None:
                agent.runs = False
                self._tell(m.RankKilled(rank, _LOST.format(engine=self._engine)))
                self._tell(m.RankExited(rank, -9))

    def _let_go(self, agent: RankAgent) -> None:
        self._loop.remove_reader(agent.descriptor)
        agent.channel.close()
        self._every.remove(agent)
