"""Cluster engines (Spark, Ray) as launchers: the engine starts a process for each rank, which calls back with an agent.

    launcher --engine's own way--> task, actor: ``Invitation.accept`` --> agent (processes/engine_agent.py) --> rank
       ^----------------------------- socket --------------------------'

The engine is only the way to have processes started: output, ends and elastic messages take the agents' channels, and
the ranks meet as everywhere. A new engine is one class with the methods of ``Engine``.

Terms.
  index   the number that the engine gives a process, from 0: a partition of Spark's, an actor of Ray's
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

from hvd_kernel.compat import rank_environment
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle
from hvd_kernel.processes import engine_agent
from hvd_kernel.processes.channel.messages import Message
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.settings.launchers import without_launchers


@dataclass(frozen=True)
class Invitation:
    """What travels to the engine's processes, by the engine's own channel; it can be pickled.

    ``env``: the user's variables, added to those that the engine's process has; ``hidden``: names of the engine's own
    that ranks shall not see.
    """

    address: str
    secret: str = field(repr=False)
    env: dict[str, str]
    hidden: tuple[str, ...] = ()

    def accept(self, index: int, own: Mapping[str, str] | None = None) -> None:
        """Bring the rank of this number: in a process of the engine's, until the launcher lets go.

        Parameters
        ----------
        index
            The number of this process.
        own
            Variables of this rank alone: the devices that the engine has given it.

        Raises
        ------
        ClusterError
            The launcher cannot be reached.
        """
        env = {name: value for name, value in without_launchers(os.environ).items() if name not in self.hidden}
        path = [*filter(None, [self.env.get("PYTHONPATH")]), *_added()]
        env |= self.env | {"PYTHONPATH": os.pathsep.join(path)} | dict(own or {})
        engine_agent.hold(self.address, self.secret, {"rank": index}, env | rank_environment(env))


class Engine(Protocol):
    """One job of an engine. It is made for one launch, and started once."""

    name: str
    """What it is called in messages."""

    addresses: Sequence[str]
    """Of this host, where the engine's processes may reach it; none: all of them are on this host."""

    hidden: tuple[str, ...]
    """Variables of the engine's own that ranks shall not see."""

    def work(self, invitation: Invitation) -> None:
        """Start as many processes as there are ranks, have each accept, and wait for all. Called in a thread."""

    def cancel(self) -> None:
        """Have ``work`` end. Any thread."""

    def explain(self, error: BaseException) -> str:
        """Return what an error of ``work`` says, and the remedy."""

    def shortage(self) -> str:
        """Say what the engine has for the ranks at this moment, as a sentence; empty: it does not tell."""


@runtime_checkable
class ChangingEngine(Engine, Protocol):
    """An engine whose processes come and go with its nodes while an elastic job runs; ``cancel`` ends its work."""

    withdraw: Callable[[int], None]
    """Is set by the job: its ranks leave the process of this number at their next commit. Any thread calls it."""


class EngineRun:
    """An engine at work, in a thread of its own; it explains why ranks do not come (``Starter``).

    ``on_end`` is called in that thread when it has ended, with the error if there is one.
    """

    def __init__(
        self,
        engine: Engine,
        invitation: Invitation,
        on_end: Callable[[BaseException | None], None] = lambda _error: None,
    ) -> None:
        self.error: BaseException | None = None
        self._engine, self._is_up = engine, False
        self._over, self._on_end = os.eventfd(0), on_end
        self._thread = threading.Thread(target=self._work, args=(invitation,), name=engine.name, daemon=True)
        self._thread.start()

    def _work(self, invitation: Invitation) -> None:
        try:
            self._engine.work(invitation)
        except BaseException as error:  # noqa: BLE001 - it is raised where the ranks are waited for
            self.error = error
        os.eventfd_write(self._over, 1)
        self._on_end(self.error)

    def watch(self, loop: EventLoop, on_end: Callable[[], None]) -> None:
        """Call back in the loop where the engine has ended."""
        loop.add_reader(self._over, on_end)

    def unwatch(self, loop: EventLoop) -> None:
        """Call back no more."""
        loop.remove_reader(self._over)

    def up(self) -> None:
        """Every rank is there, and ends when its agent is let go: nothing has to be cancelled."""
        self._is_up = True

    def close(self, seconds: float) -> None:
        """Wait for the end, and cancel what has not ended after a time; at once where the ranks have not come."""
        self._thread.join(seconds if self._is_up else 0.0)
        if self._thread.is_alive():
            with suppress(Exception):  # the engine itself may be gone
                self._engine.cancel()
            self._thread.join(seconds)
        if not self._thread.is_alive():
            os.close(self._over)

    def hear(self, _agent: AgentHandle, _message: Message, _there: int, _np: int) -> None:
        """Take a message of an agent that is no rank's: there is none."""

    def slow(self, seconds: float, there: int, np: int) -> ClusterError:
        """Explain that the ranks have not come in time."""
        name, said = self._engine.name, self._engine.shortage()
        return ClusterError(
            f"Timed out waiting for {name} to start the ranks: {there} of {np} are up after {seconds:g} s. "
            f"{said}{' ' if said else ''}Give {name} more resources or lower the number of ranks; where resources are "
            "allocated on demand, raise start_timeout."
        )

    def others(self, np: int) -> ClusterError:
        """Explain that other ranks have come than were asked for."""
        return ClusterError(f"{self._engine.name} did not start {np} rank(s), each of them once.")

    def fail(self, there: int, np: int) -> NoReturn:
        """Raise because the engine has ended before the ranks are there."""
        said = "" if self.error is None else f": {self._engine.explain(self.error)}"
        raise ClusterError(f"{self._engine.name} has ended when {there} of {np} ranks were up{said}") from self.error


def by_hosts(agents: Sequence[AgentHandle]) -> list[AgentHandle]:
    """Return them, given by their indices, in the order of ranks: host by host, that of index 0 first, as Horovod does.

    Two names of a host are two hosts (``HVD_HOST``).
    """
    names = sorted({str(agent.hello["host"]) for agent in agents})
    first = names.index(str(agents[0].hello["host"]))
    order = names[first:] + names[:first]
    return sorted(agents, key=lambda agent: order.index(str(agent.hello["host"])))


def _added() -> list[str]:
    """Return where this process finds modules besides where its Python always looks."""
    own = (sys.prefix, sys.base_prefix)
    return [folder for folder in sys.path if folder and not any(Path(folder).is_relative_to(prefix) for prefix in own)]
