"""Cluster engines (Spark, Ray) as launchers: the engine starts a process per rank, whose agent connects back.

    launcher --engine's channel--> task, actor: ``Invitation.accept`` --> agent (processes/rank_agent.py) --> rank
       ^----------------------------- socket --------------------------'

The engine only starts processes: output, exits and elastic messages use the agents' channels, and the rendezvous of the
ranks is that of all jobs. A new engine is one class with the methods of ``Engine``.

Terms.
  index   the engine's number of a process, from 0: a partition in Spark, an actor in Ray
"""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

from hvd_kernel.compat import rank_environment
from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.agents import AgentHandle
from hvd_kernel.processes import rank_agent
from hvd_kernel.processes.channel.messages import Message
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.settings.lookup import without_launchers
from hvd_kernel.version import __version__

_CLOSE_S = 10.0  # time for the engine to notice that a notebook's ranks have exited


@dataclass(frozen=True)
class Invitation:
    """Address, secret and environment for the engine's processes, passed by the engine's own channel; picklable.

    ``env``: the user's variables, added to those of the engine's process; ``hidden``: variables of the engine that
    ranks must not have.
    """

    address: str
    secret: str = field(repr=False)
    env: dict[str, str]
    hidden: tuple[str, ...] = ()

    def accept(self, index: int, variables: Mapping[str, str] | None = None) -> None:
        """Run the agent of one rank in this process of the engine, until the launcher disconnects.

        Parameters
        ----------
        index
            The number of this process.
        variables
            Variables of this rank alone: the devices that the engine has assigned to it.

        Raises
        ------
        ClusterError
            The launcher cannot be reached.
        """
        env = {name: value for name, value in without_launchers(os.environ).items() if name not in self.hidden}
        path = [*filter(None, [self.env.get("PYTHONPATH")]), *_added_paths()]
        env |= self.env | {"PYTHONPATH": os.pathsep.join(path)} | dict(variables or {})
        rank_agent.hold(self.address, self.secret, {"rank": index}, env | rank_environment(env))


class Engine(Protocol):
    """One job of an engine, made for one launch and started once."""

    name: str
    """Its name in messages."""

    addresses: Sequence[str]
    """Addresses at which the engine's processes may reach this host; empty: all of them are on this host."""

    hidden: tuple[str, ...]
    """Variables of the engine that ranks must not have."""

    def work(self, invitation: Invitation) -> None:
        """Start one process per rank, accept the invitation in each, and wait for all. Called in a thread."""

    def cancel(self) -> None:
        """End ``work``. Any thread."""

    def explain(self, error: BaseException) -> str:
        """Return the message of an error of ``work``, with the remedy."""

    def shortage(self) -> str:
        """Return a sentence on the resources that the engine has for the ranks now; empty if unknown."""


@runtime_checkable
class ChangingEngine(Engine, Protocol):
    """An engine that starts and stops processes with its nodes while an elastic job runs; ``cancel`` ends its work."""

    withdraw: Callable[[int], None]
    """Set by the job: makes the ranks leave the process of this number at their next commit. Any thread."""


class EngineRun:
    """Runs an engine in a thread of its own, and explains why ranks do not connect (``Starter``).

    ``on_end`` is called in that thread when it has ended, with the error or None.
    """

    def __init__(
        self,
        engine: Engine,
        invitation: Invitation,
        on_end: Callable[[BaseException | None], None] = lambda _error: None,
    ) -> None:
        self.error: BaseException | None = None
        self._engine, self._is_up = engine, False
        self._ended_fd, self._on_end = os.eventfd(0), on_end
        self._thread = threading.Thread(target=self._work, args=(invitation,), name=engine.name, daemon=True)
        self._thread.start()

    def _work(self, invitation: Invitation) -> None:
        try:
            self._engine.work(invitation)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the ranks
            self.error = error
        os.eventfd_write(self._ended_fd, 1)
        self._on_end(self.error)

    def watch(self, loop: EventLoop, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` in the loop when the engine has ended."""
        loop.add_reader(self._ended_fd, on_end)

    def unwatch(self, loop: EventLoop) -> None:
        """Undo ``watch``."""
        loop.remove_reader(self._ended_fd)

    def up(self) -> None:
        """Record that every rank is connected: each exits when its agent is released, so ``close`` may wait."""
        self._is_up = True

    def close(self, seconds: float) -> None:
        """Wait for the engine's end and cancel it after this time; immediately if not every rank has connected."""
        self._thread.join(seconds if self._is_up else 0.0)
        if self._thread.is_alive():
            with suppress(Exception):  # the engine itself may be gone
                self._engine.cancel()
            self._thread.join(seconds)
        if not self._thread.is_alive():
            os.close(self._ended_fd)

    def on_message(self, _agent: AgentHandle, _message: Message, _ready: int, _np: int) -> None:
        """Ignore: every agent here belongs to a rank."""

    def timeout_error(self, seconds: float, ready: int, np: int) -> ClusterError:
        """Explain that the ranks did not connect in time."""
        name, shortage = self._engine.name, self._engine.shortage()
        return ClusterError(
            f"Timed out waiting for {name} to start the ranks: {ready} of {np} are up after {seconds:g} s. "
            f"{shortage}{' ' if shortage else ''}Give {name} more resources or lower the number of ranks; where "
            "resources are allocated on demand, raise start_timeout."
        )

    def wrong_ranks_error(self, np: int) -> ClusterError:
        """Explain that other ranks were started than requested."""
        return ClusterError(f"{self._engine.name} did not start {plural(np, 'rank')}, each of them once.")

    def fail(self, ready: int, np: int) -> NoReturn:
        """Raise because the engine has ended before every rank has connected."""
        reason = "" if self.error is None else f": {self._engine.explain(self.error)}"
        raise ClusterError(f"{self._engine.name} has ended when {ready} of {np} ranks were up{reason}") from self.error


class NotebookEngine:
    """An engine that starts the agents of a notebook's cluster (cluster/launcher.py) and lives with them.

    Parameters
    ----------
    engine
        An engine that has not been started.
    env
        Variables of the ranks besides those of the engine's processes.
    """

    def __init__(self, engine: Engine, env: Mapping[str, str]) -> None:
        self.name: str = engine.name
        self.addresses: Sequence[str] = engine.addresses
        self._engine, self._env = engine, dict(env)
        self._run: EngineRun | None = None

    def begin(self, address: str, secret: str, on_end: Callable[[str], None]) -> None:
        """Start one process per rank, which connects back; ``on_end(reason)`` runs in a thread when the engine ends."""

        def report_end(error: BaseException | None) -> None:
            on_end("" if error is None else self._engine.explain(error))

        self._run = EngineRun(self._engine, Invitation(address, secret, self._env, self._engine.hidden), report_end)

    def shortage(self) -> str:
        """Return a sentence on the resources that the engine has for the ranks now; empty if unknown."""
        return self._engine.shortage()

    def end(self, *, at_once: bool) -> None:
        """Wait for the engine's end, and cancel it after a time, or at once. Idempotent."""
        run, self._run = self._run, None
        if run is not None:
            if not at_once:
                run.up()
            run.close(_CLOSE_S)


def by_hosts(agents: Sequence[AgentHandle]) -> list[AgentHandle]:
    """Return agents, passed by index, in the order of ranks: host by host, the host of index 0 first, as in Horovod.

    Two names of a host are two hosts (``HVD_HOST``).
    """
    names = sorted({str(agent.hello["host"]) for agent in agents})
    first = names.index(str(agents[0].hello["host"]))
    order = names[first:] + names[:first]
    return sorted(agents, key=lambda agent: order.index(str(agent.hello["host"])))


def _added_paths() -> list[str]:
    """Return the entries of sys.path outside this Python's own folders."""
    prefixes = (sys.prefix, sys.base_prefix)
    return [path for path in sys.path if path and not any(Path(path).is_relative_to(prefix) for prefix in prefixes)]


# Checks of an engine's processes before ranks are started in them: their Python, and whether they reach this host


_CALL_S = 10.0
_NEEDED = ("ipykernel", "ipyparallel", "msgspec", "numpy")


@contextmanager
def reachable(address: str) -> Iterator[tuple[str, int]]:
    """Listen on an address of this host while the engine's processes are inspected; "": they are on this host."""
    with socket.socket() as listening:
        listening.bind((address or "127.0.0.1", 0))
        listening.listen(128)
        yield listening.getsockname()


def inspect_process(address: str, port: int) -> dict[str, str]:
    """Return the host, versions by package ("" if not installed) and the connection error of the calling process.

    Examples
    --------
    >>> with reachable("") as where:
    ...     inspect_process(*where)["unreached"]
    ''
    """
    facts = {"host": socket.gethostname(), "python": platform.python_version(), "hvd_kernel": __version__}
    facts["core"] = "there" if importlib.util.find_spec("hvd_kernel._native") else ""
    for name in _NEEDED:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = ""
    try:
        socket.create_connection((address, port), _CALL_S).close()
        facts["unreached"] = ""
    except OSError as error:
        facts["unreached"] = f"{address}: {error}"
    return facts


def check_result(where: str, facts: Mapping[str, str]) -> CheckResult:
    """Return the verdict on the processes in one place, from what ``inspect_process`` has returned there."""
    missing = [name for name in ("core", *_NEEDED) if not facts[name]]
    has = f"Python {facts['python']}, hvd_kernel {facts['hvd_kernel']}"
    if facts["hvd_kernel"] != __version__:
        return CheckResult(where, False, has, f"this notebook has hvd_kernel {__version__}: install the same one there")
    if missing:
        return CheckResult(where, False, f"{has}, without {', '.join(missing)}", f"there: {install_command()}")
    if facts["unreached"]:
        fix = "open the way from there to this host, on any port: ranks call the notebook"
        return CheckResult(where, False, f"{has}; it does not reach this notebook at {facts['unreached']}", fix)
    return CheckResult(where, True, f"{has}; it reaches this notebook")
