"""The one engine of this process: ``init``, ``shutdown``, and who may use it in between.

Terms.
  engine      the native core of one rank; exists between ``init`` and ``shutdown``
  generation  how many engines this process has had; what was enqueued belongs to one of them
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hvd_kernel.core import agent_channel, deadlocks, handshake, topology
from hvd_kernel.core.driver.newcomer import NewcomersEngine
from hvd_kernel.errors import HorovodInternalError, NotInitialized
from hvd_kernel.settings import lookup, network
from hvd_kernel.tracking import process as tracking

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_LOG = logging.getLogger("hvd_kernel")
_lock = threading.RLock()  # init and shutdown, never the hot path
_engine: Engine | None = None
_generation = 0
_rounds = 0
_before: dict[str, int] = {}  # sum of the counters of the engines before this one
_registered = False
_environment: dict[str, str] = {}  # the variables HOROVOD_* and HVD_* when this engine was made
_rendezvous: Rendezvous | None = None
_beside_rank_0 = True  # on one machine with it
_by_mpi = False  # MPI has brought these ranks together


@dataclass(frozen=True)
class KnownPeers:
    """Peers of a rendezvous that have met before: how long they wait, and what shows that one of them does not come."""

    patience_s: float  # instead of the start timeout
    pidfds: Mapping[int, int]  # of the ranks' processes that can be seen from here


@dataclass(frozen=True)
class Rendezvous:
    """Rendezvous from now on, whatever launched this rank: which it is, where rank 0 is. The secret stays in memory."""

    rank: int
    size: int
    host: str
    port: int
    secret: str = field(repr=False)
    pidfds: Mapping[int, int]  # as in KnownPeers

    def over(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment as if a launcher had said so: a copy, which no other process sees."""
        said = {"HOROVOD_RANK": str(self.rank), "HOROVOD_SIZE": str(self.size), "HVD_BOOTSTRAP": "tcp"}
        place = {"HOROVOD_CONTROLLER_ADDR": self.host, "HOROVOD_CONTROLLER_PORT": str(self.port)}
        return {**env, **said, **place, "HVD_SECRET_KEY": self.secret}


@dataclass
class _Recorded:
    """The newest timeline of this process."""

    path: str = ""
    marks_cycles: bool = False
    goes_on: bool = False
    went_on: bool = False  # when the ranks left each other

    def begin(self, path: str, *, marks_cycles: bool) -> None:
        """Take note of a new one."""
        self.path, self.marks_cycles, self.goes_on = str(Path(path).absolute()), marks_cycles, True

    def pause(self) -> None:
        """Take note that the ranks leave each other; they may meet again."""
        self.went_on, self.goes_on = self.goes_on, False


_timeline = _Recorded()


def set_rendezvous(rendezvous: Rendezvous | None) -> Rendezvous | None:
    """Have every ``init`` from now on use this one; return that before it. None: as a launcher has said."""
    global _rendezvous
    before, _rendezvous = _rendezvous, rendezvous
    return before


def has_driver() -> bool:
    """Tell whether an elastic driver gives this process its places: its rank and size, again and again."""
    return os.environ.get("HVD_ELASTIC_DRIVER") == "1"


def connect_to_agent() -> None:
    """Reach the agent that has started this process, if one has, and through it the driver, where there is one."""
    if has_driver() and not agent_channel.is_connected():
        from hvd_kernel.core.driver.channel import driver  # noqa: PLC0415 - only such a job needs it

        driver().on_pushed(_leave_generation)
        agent_channel.connect(lambda: _engine, driver().hear)
    else:
        agent_channel.connect(lambda: _engine)


def _leave_generation(why: str) -> None:
    """Release this rank, and those that wait for it: the driver has another generation in mind."""
    running = _engine
    if running is not None:
        running.abort(why)


def init(comm: Any = None, known: KnownPeers | None = None, *, again: bool = False) -> None:
    """Join the other ranks; returns when the links to all of them are up. Does nothing while initialised.

    ``comm``: None (the ranks are found from the environment, see topology), an mpi4py communicator, or a list of
    ranks of MPI_COMM_WORLD. ``again``: they have met before, and a timeline goes on in its file.
    """
    with _lock:
        if _engine is None:
            connect_to_agent()
            _start(comm, known, again=again)


def _start(comm: Any, known: KnownPeers | None, *, again: bool) -> None:
    global _engine, _generation, _rounds, _registered, _environment, _beside_rank_0, _by_mpi  # noqa: PLW0603 - of the one engine
    from hvd_kernel._native import Engine  # noqa: PLC0415 - only a rank loads the extension

    env = dict(os.environ) if _rendezvous is None else _rendezvous.over(os.environ)
    if known is not None:
        env["HVD_START_TIMEOUT"] = f"{known.patience_s:g}"
    options = lookup.engine_options(env)
    if place := _place():
        options["place"] = place
    timeline = _timeline_of(options, again=again)
    _rounds += 1
    found = known or _rendezvous
    peers = topology.find(comm, env, _rounds, found.pidfds if found is not None else None)
    try:
        handshake.same_version(peers)
        cards = handshake.cards(peers, tracking.card())
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
        lookup.tell(env)
    _generation += 1
    if timeline is not None:
        _record(_engine, *timeline, again=again)
    _by_mpi = peers.by_mpi
    _environment = {name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "HVD_"))}
    if not _registered:
        _registered = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_forget)


def _place() -> str:
    """Return the local and cross numbers that an elastic driver gives, by slots; "": the engine counts by ranks."""
    if not has_driver():
        return ""
    from hvd_kernel.core.driver.worker import worker  # noqa: PLC0415 - only such a job needs it

    place = worker().place
    return f"{place.local_rank},{place.cross_rank},{place.cross_size}" if place is not None else ""


def _timeline_of(options: dict[str, str], *, again: bool) -> tuple[str, bool] | None:
    """Return the file of a timeline, and whether it marks cycles. A new one begins with the engine, by its options."""
    path, marks_cycles = options.get("timeline", ""), options.get("mark_cycles") == "1"
    if again:
        options.pop("timeline", None)
        if _timeline.went_on:
            path, marks_cycles = _timeline.path, _timeline.marks_cycles
    return (path, marks_cycles) if path else None


def _record(engine: Engine, path: str, marks_cycles: bool, *, again: bool) -> None:
    """Take note of a timeline; one that goes on after a reset goes on in its file."""
    try:
        if again:
            engine.start_timeline(path, marks_cycles, goes_on=True)
    except HorovodInternalError as error:  # as where the engine cannot begin one
        _LOG.warning("%s", error)
        return
    _timeline.begin(path, marks_cycles=marks_cycles)


def shutdown() -> None:
    """Leave the other ranks; what is still pending ends with an error. Does nothing while not initialised.

    One rank's ``shutdown`` ends the job for all: what others start afterwards raises HorovodInternalError on them. It
    is called at the end of the process by itself.

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
    """In a forked child (a DataLoader's worker): the engine's threads stayed behind, its destructor must not run."""
    global _engine, _lock
    if _engine is not None:
        engine = _engine.engine if isinstance(_engine, NewcomersEngine) else _engine
        engine.make_current(False)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    _engine, _lock = None, threading.RLock()


def by_mpi() -> bool:
    """Tell whether MPI has brought the ranks of this engine together."""
    return _engine is not None and _by_mpi


def refuse_collectives() -> None:
    """Have this rank's collectives raise until ``allow_collectives``: it is new, the others are busy with theirs."""
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
    """Tell whether this process is between ``init`` and ``shutdown``.

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
    """Return how many engines there have been: changes when the communicator was reset."""
    return _generation


def variable(name: str) -> str:
    """Return what a variable HOROVOD_* or HVD_* was when the engine was made; "" where it was not set."""
    return _environment.get(name, "")


def setting(name: str) -> str:
    """Return the checked value of a setting of another part than the core, as it was when the engine was made."""
    return lookup.value(name, _environment)


def counters() -> dict[str, int]:
    """Return the core's counters, summed over every engine of this process, so that they never go back."""
    with _lock:
        now = {} if _engine is None else _engine.counters()
        return {name: _before.get(name, 0) + now.get(name, 0) for name in {**_before, **now}}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what the core does from here on to a file for chrome://tracing or Perfetto. Rank 0 writes.

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
        Before ``init``, or HOROVOD_TIMELINE was not set then. The file cannot be written: on every rank of rank 0's
        machine, and a timeline that runs goes on; ranks of other machines do not see rank 0's files.

    Examples
    --------
    >>> import json, os, pathlib
    >>> os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # said before init: a timeline may be wanted
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
    """Do as ``start_timeline``, whether a variable has said before that somebody would or not."""
    running = engine()
    path = os.fspath(file_path)
    if _beside_rank_0 and (why := _unwritable(Path(path))):
        raise ValueError(f"the timeline {path} cannot be written: {why}.")
    running.start_timeline(path, mark_cycles)
    _timeline.begin(path, marks_cycles=mark_cycles)


def timeline() -> tuple[str, bool]:
    """Return the whole path of the newest timeline, "" where there was none, and whether it goes on."""
    return _timeline.path, _timeline.goes_on


def _unwritable(path: Path) -> str:
    """Return why a file cannot be written; empty: it can."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first"
    if path.is_dir():
        return "it is a folder; name a file in it"
    return "" if os.access(path if path.exists() else path.parent, os.W_OK) else "this user may not write there"


def stop_timeline() -> None:
    """End the timeline; its file is complete when this returns. Does nothing where there is none.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> hvd.stop_timeline()
    """
    engine().stop_timeline()
    _timeline.goes_on = False


def rank() -> int:
    """Return this process's rank, from 0 to ``size()`` - 1.

    Raises
    ------
    ValueError
        Before ``init``: also ``size`` and the other questions about ranks.

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
    """Tell whether every host has the same number of ranks.

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
