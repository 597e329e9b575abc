"""The one engine of this process: ``init``, ``shutdown``, and access to it in between.

Terms.
  engine      the native core of one rank; exists between ``init`` and ``shutdown``
  generation  how many engines this process has had; an enqueued operation belongs to one of them
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hvd_kernel.core import agent_channel, deadlocks, group_engines, topology, torch_address
from hvd_kernel.core.timeline import Timeline
from hvd_kernel.errors import NotInitialized
from hvd_kernel.settings import lookup, network
from hvd_kernel.tracking import process as tracking

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_lock = threading.RLock()  # for init and shutdown, never on the hot path
_engine: Engine | None = None
_generation = 0
_rounds = 0
_before: dict[str, int] = {}  # sum of the counters of all earlier engines
_waited = 0  # the ``wait_ns`` returned most recently
_registered = False
_environment: dict[str, str] = {}  # the variables HOROVOD_* and HVD_* when this engine was made
_rendezvous: Rendezvous | None = None
_beside_rank_0 = True  # on the same machine
_by_mpi = False  # MPI connected these ranks
_timeline = Timeline()

_COLLECTIVE = frozenset(
    (
        *("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join"),
        *("add_process_set", "remove_process_set", "allocate_shared", "release_shared"),
    )
)


@dataclass(frozen=True)
class KnownPeers:
    """Peers known from an earlier rendezvous: how long to wait for them, and how to notice that one has ended."""

    patience_s: float  # instead of the start timeout
    pidfds: Mapping[int, int]  # by rank, of the processes visible from here


@dataclass(frozen=True)
class Rendezvous:
    """Rank, size and rendezvous address that replace the launcher's. The secret stays in memory."""

    rank: int
    size: int
    host: str
    port: int
    secret: str = field(repr=False)
    pidfds: Mapping[int, int]  # as in KnownPeers

    def over(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of the environment as a launcher would have set it; no other process sees the copy."""
        rank = {"HOROVOD_RANK": str(self.rank), "HOROVOD_SIZE": str(self.size), "HVD_BOOTSTRAP": "tcp"}
        place = {"HOROVOD_CONTROLLER_ADDR": self.host, "HOROVOD_CONTROLLER_PORT": str(self.port)}
        return {**env, **rank, **place, "HVD_SECRET_KEY": self.secret}


class NewcomersEngine:
    """Engine of a new rank before ``elastic.run``: it answers queries, and refuses collectives.

    The other ranks are inside the decorated function and issue other operations: a collective of the new rank would be
    matched with theirs, or wait.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        """Return the engine's attribute, or a function that raises for a collective."""
        return _refusing(name, self.engine.rank) if name in _COLLECTIVE else getattr(self.engine, name)


def _refusing(name: str, rank: int) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError(
            f"hvd.{name} before elastic.run, on rank {rank}, which is new in a job that runs: the other ranks are "
            "within the function that elastic.run calls. Let ranks communicate only in there (values that all must "
            "have in common belong into the state)."
        )

    return refuse


def set_rendezvous(rendezvous: Rendezvous | None) -> Rendezvous | None:
    """Set the rendezvous of every later ``init`` and return the previous one. None: the launcher's."""
    global _rendezvous
    previous, _rendezvous = _rendezvous, rendezvous
    return previous


def has_driver() -> bool:
    """Return whether an elastic driver assigns this process its places: rank and size in each generation."""
    return os.environ.get("HVD_ELASTIC_DRIVER") == "1"


def connect_to_agent() -> None:
    """Connect to the agent that started this process, if any, and through it to the driver of an elastic job."""
    if has_driver() and not agent_channel.is_connected():
        from hvd_kernel.core.elastic_worker import driver  # noqa: PLC0415 - only such a job needs it

        driver().on_pushed(_leave_generation)
        agent_channel.connect(lambda: _engine, driver().receive)
    else:
        agent_channel.connect(lambda: _engine)


def _leave_generation(reason: str) -> None:
    """Abort the engine, which releases this rank and those that wait for it: the driver plans another generation."""
    running = _engine
    if running is not None:
        running.abort(reason)


def init(comm: Any = None, known_peers: KnownPeers | None = None, *, again: bool = False) -> None:
    """Join the other ranks; return when the links to all of them are up. Do nothing while initialised.

    ``comm``: None (the ranks are found from the environment, see topology), an mpi4py communicator, or a list of
    ranks of MPI_COMM_WORLD. ``again``: the ranks reset their communicator, and a timeline continues in its file.
    """
    with _lock:
        if _engine is None:
            connect_to_agent()
            _start(comm, known_peers, again=again)


def _start(comm: Any, known_peers: KnownPeers | None, *, again: bool) -> None:
    global _engine, _generation, _rounds, _registered, _environment, _beside_rank_0, _by_mpi  # noqa: PLW0603 - of the one engine
    from hvd_kernel._native import Engine  # noqa: PLC0415 - only a rank loads the extension

    env = dict(os.environ) if _rendezvous is None else _rendezvous.over(os.environ)
    if known_peers is not None:
        env["HVD_START_TIMEOUT"] = f"{known_peers.patience_s:g}"
    options = lookup.engine_options(env)
    if place := _place():
        options["place"] = place
    timeline = _timeline.at_start(options, again=again)
    _rounds += 1
    expected = known_peers or _rendezvous
    peers = topology.find(comm, env, _rounds, expected.pidfds if expected is not None else None)
    try:
        topology.check_versions(peers)
        cards = topology.exchange_cards(peers, {**tracking.card(), **torch_address.card(peers.rank)})
        tracking.agree(cards)
        if address := network.reached(cards[peers.rank], cards):
            options.setdefault("tcp_interface", address)
        _beside_rank_0 = cards[peers.rank]["machine"] == cards[0]["machine"]
        _engine = Engine(peers.rank, peers.size, peers.exchange, options)
        _engine.make_current()
    finally:
        peers.close()
    if peers.size > 1:
        deadlocks.watch(lambda: _engine)
    if peers.rank == 0:
        lookup.log_substitutions(env)
    _generation += 1
    if timeline is not None:
        _timeline.resume(_engine, *timeline, again=again)
    _by_mpi = peers.by_mpi
    if peers.source != topology.NO_LAUNCHER:
        numbers = _engine.rank, _engine.size, _engine.local_rank, _engine.local_size
        torch_address.adopt(numbers, cards, env.get("HOROVOD_CONTROLLER_ADDR", ""))
    _environment = {name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "HVD_"))}
    if not _registered:
        _registered = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget)


def _place() -> str:
    """Return the local and cross numbers that an elastic driver assigns by slots; "": the engine derives them."""
    if not has_driver():
        return ""
    from hvd_kernel.core.elastic_worker import worker  # noqa: PLC0415 - only such a job needs it

    place = worker().place
    return f"{place.local_rank},{place.cross_rank},{place.cross_size}" if place is not None else ""


def shutdown() -> None:
    """Leave the other ranks; pending operations fail. Does nothing while not initialised.

    One rank's ``shutdown`` ends the job for all: operations that other ranks start afterwards raise
    HorovodInternalError there. It is called automatically at the end of the process.

    Examples
    --------
    >>> hvd.shutdown()
    >>> hvd.is_initialized()
    False
    >>> hvd.init()
    """
    global _engine
    with _lock:
        if _engine is None:
            return
        leaving, _engine = _engine, None
        leaving.make_current(False)
        leaving.shutdown()
        _timeline.pause()
        for name, value in leaving.counters().items():
            _before[name] = _before.get(name, 0) + value


def _forget() -> None:
    """Drop the engine in a forked child (a DataLoader's worker)."""
    global _engine, _lock
    if _engine is not None:
        engine = _engine.engine if isinstance(_engine, NewcomersEngine) else _engine
        engine.make_current(False)
        leak(engine)
    _engine, _lock = None, threading.RLock()


def leak(engine: Engine) -> None:
    """Keep the destructor of an engine from running in a forked child, which has none of the engine's threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))


def by_mpi() -> bool:
    """Return whether MPI connected the ranks of this engine."""
    return _engine is not None and _by_mpi


def refuse_collectives() -> None:
    """Make collectives of this new rank raise until ``allow_collectives``: the other ranks are busy with theirs."""
    global _engine  # noqa: PLW0603 - of the process
    with _lock:
        if _engine is not None:
            _engine.make_current(False)
            _engine = cast("Engine", NewcomersEngine(_engine))


def allow_collectives() -> None:
    """Undo ``refuse_collectives``, if it was called."""
    global _engine  # noqa: PLW0603 - of the process
    with _lock:
        if isinstance(_engine, NewcomersEngine):
            _engine = _engine.engine
            _engine.make_current()


def is_initialized() -> bool:
    """Return whether this process is between ``init`` and ``shutdown``.

    Examples
    --------
    >>> hvd.is_initialized()
    True
    """
    return _engine is not None


def engine() -> Engine:
    """Return the engine.

    Raises
    ------
    NotInitialized
        Before ``init`` or after ``shutdown``.
    """
    if _engine is None:
        raise NotInitialized
    return _engine


def generation() -> int:
    """Return the number of engines so far, which changes when the communicator is reset."""
    return _generation


def variable(name: str) -> str:
    """Return the value of a variable HOROVOD_* or HVD_* when the engine was made; "" if it was not set."""
    return _environment.get(name, "")


def setting(name: str) -> str:
    """Return the checked value, when the engine was made, of a setting that does not belong to the core."""
    return lookup.value(name, _environment)


def counters() -> dict[str, int]:
    """Return the core's counters, summed over every engine of this process, so that they never decrease.

    ``wait_ns`` leaves out waits of other threads while the main thread computed.
    """
    global _waited  # noqa: PLW0603 - as the counters
    with _lock:
        now = {} if _engine is None else _engine.counters()
        all_engines = (_before, now, group_engines.counters())
        names = {name for counted in all_engines for name in counted}
        total = {name: sum(counted.get(name, 0) for counted in all_engines) for name in names}
        if "wait_ns" in total:  # what is left out is known a moment after the wait
            _waited = total["wait_ns"] = max(_waited, total["wait_ns"])
        return total


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record the core's work from now on in a file for chrome://tracing or Perfetto. Rank 0 writes.

    Horovod's page: https://horovod.readthedocs.io/en/stable/timeline_include.html

    Parameters
    ----------
    file_path
        The file, which is overwritten; its folder exists. It can be read at every moment.
    mark_cycles
        Also mark every round of the negotiation.

    Raises
    ------
    ValueError
        Before ``init``, or HOROVOD_TIMELINE was not set at ``init``. If the file cannot be written, every rank of
        rank 0's machine raises, and a running timeline continues; ranks of other machines do not see rank 0's files.

    Examples
    --------
    >>> import json, os, pathlib
    >>> os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # before init: a timeline may start later
    >>> hvd.shutdown()
    >>> hvd.init()
    >>> hvd.start_timeline("trace.json")
    >>> hvd.allreduce(torch.ones(2), name="loss")
    tensor([1., 1.])
    >>> hvd.stop_timeline()
    >>> hvd.rank() != 0 or "allreduce.loss" in pathlib.Path("trace.json").read_text()
    True
    """
    engine()
    if not (variable("HVD_TIMELINE") or variable("HOROVOD_TIMELINE")):
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.")
    record_timeline(file_path, mark_cycles)


def record_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start a timeline as ``start_timeline`` does, but without requiring HOROVOD_TIMELINE=DYNAMIC."""
    _timeline.start(engine(), file_path, marks_cycles=mark_cycles, shares_files=_beside_rank_0)


def timeline() -> tuple[str, bool]:
    """Return the absolute path of the newest timeline, "" if there was none, and whether it is running."""
    return _timeline.path, _timeline.is_running


def stop_timeline() -> None:
    """Stop the timeline; its file is complete when this returns. Does nothing if no timeline is running.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.stop_timeline()
    """
    _timeline.stop(engine())


def rank() -> int:
    """Return this process's rank, from 0 to ``size()`` - 1.

    Raises
    ------
    ValueError
        Before ``init``, as ``size`` and the other functions about ranks.

    Examples
    --------
    >>> 0 <= hvd.rank() < hvd.size()
    True
    """
    return engine().rank


def size() -> int:
    """Return the number of ranks.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.size() == len(hvd.allgather_object(hvd.rank()))
    True
    """
    return engine().size


def local_rank() -> int:
    """Return this rank's number among the ranks of its host: usually also the number of its GPU.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> 0 <= hvd.local_rank() < hvd.local_size()
    True
    """
    return engine().local_rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.local_size() <= hvd.size()
    True
    """
    return engine().local_size


def cross_rank() -> int:
    """Return this host's number among the hosts that have this local rank.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.cross_rank()  # all ranks are on one host
    0
    """
    return engine().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.cross_size()  # all ranks are on one host
    1
    """
    return engine().cross_size


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.is_homogeneous()
    True
    """
    return engine().is_homogeneous
