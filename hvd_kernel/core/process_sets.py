"""Process sets: ranks that take part in a collective together. Horovod's names, messages and rules.

Terms.
  set         a group of ranks, with an id that all ranks share; 0 is the set of all ranks
  registered  known to the engine of this generation; a shutdown ends all registrations
  dynamic     sets may be added and removed after ``init``
  reset       the ranks leave their communicator and create another; sets that all of them knew are registered again
  fresh       a rank that has never joined the others: it knew no sets, and gets those of the others
  before      for each rank its number before a reset, -1 if it is new
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import process_set_registry as registry
from hvd_kernel.core import session
from hvd_kernel.core.process_set_registry import ProcessSet, global_process_set
from hvd_kernel.errors import ConfigError, NotInitialized
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.protocol.elastic import Place

__all__ = ["ProcessSet", "add_process_set", "check", "global_process_set", "init", "remove_process_set", "set_id"]

_NOT_DYNAMIC = "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
_UNKNOWN = "Process set provided does not exist, or has not been registered."

_LOG = logging.getLogger("hvd_kernel")
_DRIVER_MARGIN_S = 60.0  # lets the driver end the job first, with its reason, when too few ranks have joined in time

_comm: tuple[int, Any] = (-1, None)  # a generation, and the communicator passed to its init
_dynamic = -1  # the generation for which init(process_sets="dynamic") was called
_has_joined = False  # this process has joined a communicator of an elastic job
_unfinished: tuple[int, _Held] | None = None  # a generation in which a reset failed, and the sets to restore
_SET, _SURVIVOR, _DYNAMIC, _FRESH = range(4)  # kinds of rows in a reset: a set, or the header of a rank's sets


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks; return when the links to all of them are up. Does nothing while initialised.

    Parameters
    ----------
    comm
        None (the ranks are found from the environment, see topology), an mpi4py communicator, or a list of
        ranks of MPI_COMM_WORLD.
    process_sets
        None, a list of process sets that all ranks register now, or "dynamic": sets may be added and removed later.

    Raises
    ------
    ValueError
        The environment or an argument cannot be used (ConfigError names it), or the ranks are of different versions.
        If a set is listed twice, or names a rank that does not exist, the ranks are initialised without it.
    HorovodInternalError
        Not all ranks have joined within HVD_START_TIMEOUT seconds (HvdTimeout).

    Examples
    --------
    >>> hvd.init()  # alone, or with ranks started by hvdrun, mpirun, torchrun or srun
    >>> hvd.is_initialized()
    True
    """
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(
            f'process_sets={process_sets!r} cannot be used: it must be a list of process sets or "dynamic".'
        )
    dynamic = process_sets == "dynamic"
    sets = [] if dynamic else list(process_sets or ())
    if session.has_driver() and not session.is_initialized():
        _join_job(comm, _Held(dynamic=dynamic), sets)
        return
    _join(comm, dynamic=dynamic)
    if sets:
        _register_all(sets)


def reset_communicator(known_peers: session.KnownPeers | None = None) -> None:
    """Leave the other ranks and join them again: same communicator, same sets. All ranks call this together.

    A set is restored if all ranks knew it: an addition or removal that any rank did not complete is undone. In an
    elastic job the ranks and their numbers may change: a set is restored if all of its members are.
    """
    _reset(_chosen(), _hold(), known_peers)


def reset_to_all_ranks(*, fresh: bool = False, before: Sequence[int] | None = None) -> None:
    """Reset as ``reset_communicator`` does, but to all existing ranks, whatever communicator this rank had chosen.

    Parameters
    ----------
    fresh
        This rank has never joined the others.
    before
        Number of each existing rank before the reset; None: no number has changed.
    """
    _reset(None, _hold() if _chosen() is None else _NOTHING, fresh=fresh, before=before)


def reset_to_this_rank() -> None:
    """Make this rank the only one of its communicator, until the next reset, which all ranks call together.

    Raises
    ------
    ValueError
        There are process sets, which would lose their other members.
    """
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    held = _hold()
    if held.sets:
        raise ValueError(f"there are process sets, of ranks {', '.join(str([*ranks]) for ranks in held.sets)}")
    session.shutdown()
    before = session.set_rendezvous(session.Rendezvous(0, 1, "127.0.0.1", 0, "", {}))
    try:
        _join(None, dynamic=held.dynamic, again=True)
    finally:
        session.set_rendezvous(before)
        _unfinished = session.generation(), held


def _reset(
    comm: Any,
    held: _Held,
    known_peers: session.KnownPeers | None = None,
    *,
    fresh: bool = False,
    before: Sequence[int] | None = None,
) -> None:
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    session.shutdown()
    _unfinished = session.generation(), held
    if session.has_driver():
        _join_job(comm, held, pidfds={} if known_peers is None else known_peers.pidfds)
    else:
        _join(comm, dynamic=False, known_peers=known_peers, again=True)
        _unfinished = session.generation(), held
        _restore(held, fresh=fresh, before=before)
    _unfinished = None


def _join(comm: Any, *, dynamic: bool, known_peers: session.KnownPeers | None = None, again: bool = False) -> None:
    global _comm, _dynamic  # noqa: PLW0603 - of the process, as the engine
    before = session.generation()
    session.init(comm, known_peers, again=again)
    if session.generation() != before:
        _comm = session.generation(), comm
        global_process_set.mpi_comm = comm if hasattr(comm, "Get_size") else None
    if dynamic:
        _dynamic = session.generation()


def _join_job(
    comm: Any, held: _Held, sets: Sequence[ProcessSet] = (), pidfds: Mapping[int, int] = MappingProxyType({})
) -> None:
    """Join the ranks of an elastic job, at the place assigned by its driver."""
    global _has_joined, _unfinished
    from hvd_kernel.core.elastic_worker import worker  # noqa: PLC0415 - only such a job needs it

    if comm is not None:
        raise ConfigError("init(comm=...) cannot be used in an elastic job, whose ranks come and go: leave comm out.")
    session.connect_to_agent()
    patience_s = float(lookup.value("HVD_ELASTIC_TIMEOUT", os.environ)) + _DRIVER_MARGIN_S
    worker().rendezvous(partial(_rendezvous, held, sets), pidfds, patience_s)
    _has_joined, _unfinished = True, None


def _rendezvous(held: _Held, sets: Sequence[ProcessSet], place: Place, watched: Mapping[int, int]) -> None:
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    session.shutdown()  # of an earlier place, whose rendezvous has failed
    rendezvous = session.Rendezvous(place.rank, place.size, place.address, place.port, place.secret, watched)
    session.set_rendezvous(rendezvous)
    _join(None, dynamic=held.dynamic, again=place.generation > 1)
    _unfinished = session.generation(), held
    is_newcomer = _restore(held, fresh=not _has_joined, before=place.before) and not _has_joined
    if is_newcomer:
        _adopt_existing_sets(sets)
        session.refuse_collectives()
    elif sets:
        _register_all(sets)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set, and return it. All ranks call this in the same order, also ranks that will not be members.

    Parameters
    ----------
    process_set
        A set that is not registered yet, or a list of ranks.

    Raises
    ------
    ValueError
        Sets are not dynamic, the set is registered already, or one of its ranks does not exist; nothing has changed
        then. Before ``init``.

    Examples
    --------
    >>> hvd.shutdown()
    >>> hvd.init(process_sets="dynamic")
    >>> hvd.add_process_set([])
    Traceback (most recent call last):
    ValueError: A process set needs at least one rank.

    On two ranks:

    >>> hvd.shutdown()
    >>> hvd.init(process_sets="dynamic")
    >>> first = hvd.add_process_set([0])
    >>> print(first)
    ProcessSet(process_set_id=1, ranks=[0], mpi_comm=None)
    >>> hvd.remove_process_set(first)
    True
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    engine = session.engine()
    if not _is_dynamic():
        raise ValueError(_NOT_DYNAMIC)
    if added.process_set_id is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {added}")
    for ranks in _definitions(added):
        members = registry.checked(ranks, engine.size)
        if members in registry.registered().values():
            raise ValueError(f"Attempted to add a duplicate process set: {added}")
        registry.register([added], members)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; all ranks call this. Returns False for the global set, and for one that is not registered.

    Parameters
    ----------
    process_set
        The set; afterwards it is not registered.

    Raises
    ------
    ValueError
        Sets are not dynamic.

    Examples
    --------
    >>> hvd.remove_process_set(hvd.global_process_set)
    False
    """
    number = process_set.process_set_id
    if not number:
        return False
    if not _is_dynamic():
        raise ValueError(_NOT_DYNAMIC.replace("adding", "removing"))
    engine = session.engine()
    outcome = engine.wait(engine.remove_process_set(number))
    registry.registered().pop(number, None)
    process_set.invalidate()
    return outcome is not None and outcome.number == 1


def set_id(process_set: ProcessSet, doing: str) -> int:
    """Return the id of a set of which this rank is a member; ``doing`` names the operation in errors.

    Raises
    ------
    ValueError
        The set is not registered, or this rank is not a member.
    """
    if process_set is global_process_set:
        return 0
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None:
        if not session.is_initialized():
            raise NotInitialized
        raise ValueError(f"{doing}: {_why_unknown(process_set)}")
    if not process_set.included():
        raise ValueError(f"{doing}: Rank {session.rank()} is not a member of the provided process set.")
    return number


def check(process_set: ProcessSet) -> None:
    """Raise an error for a set that is not registered."""
    if process_set is not global_process_set and process_set.process_set_id is None:
        if not session.is_initialized():
            raise NotInitialized
        raise ValueError(_why_unknown(process_set))


def _why_unknown(process_set: ProcessSet) -> str:
    return (process_set.lost if isinstance(process_set, ProcessSet) else "") or _UNKNOWN


@dataclass(frozen=True)
class _Held:
    """Sets that a reset has to restore; held until it succeeds, because it may take several attempts."""

    sets: tuple[tuple[int, ...], ...] = ()
    objects: tuple[tuple[ProcessSet, tuple[int, ...]], ...] = ()
    dynamic: bool = False


_NOTHING = _Held()


def _chosen() -> Any:
    return _comm[1] if _comm[0] == session.generation() else None


def _hold() -> _Held:
    """Return the registered sets; after a failed reset, those from before it."""
    if _unfinished is not None and _unfinished[0] == session.generation():
        return _unfinished[1]
    dynamic = _dynamic == session.generation()
    if not session.is_initialized():
        return _Held(dynamic=dynamic)
    everyone, *sets = registry.registered().values()
    bound = ((process_set, tuple(process_set.ranks or ())) for process_set in registry.objects())
    objects = tuple((process_set, ranks) for process_set, ranks in bound if ranks in {everyone, *sets})
    if any(ranks == everyone for _, ranks in objects):
        sets.append(everyone)  # after the reset it may differ from the set of all ranks
    return _Held(tuple(sets), objects, dynamic)


def _restore(held: _Held, *, fresh: bool, before: Sequence[int] | None = None) -> bool:
    """Register the sets that all surviving ranks held, in the order of the lowest survivor. Collective.

    Returns whether any rank is a survivor: not fresh.
    """
    global _dynamic  # noqa: PLW0603 - of the process, as the engine
    size = session.size()
    header = _FRESH if fresh else _DYNAMIC if held.dynamic else _SURVIVOR
    now = {ranks: registry.renumbered(ranks, before) for ranks in held.sets}
    rows = [(_SET, *registry.flags(registry.checked(ranks, size))) for ranks in now.values() if ranks]
    sets_by_rank: list[tuple[int, list[tuple[int, ...]]]] = []
    for kind, *flags in registry.gather_rows("process_set.reset", [(header, *bytes(size)), *rows]):
        if kind == _SET:
            sets_by_rank[-1][1].append(registry.members(flags))
        else:
            sets_by_rank.append((kind, []))
    if held.dynamic or any(kind == _DYNAMIC for kind, _ in sets_by_rank):
        _dynamic = session.generation()
    of_survivors = [sets for kind, sets in sets_by_rank if kind != _FRESH]
    for ranks in of_survivors[0] if of_survivors else ():
        if all(ranks in sets for sets in of_survivors):
            registry.register([process_set for process_set, old in held.objects if now[old] == ranks], ranks)
    for process_set, old in held.objects:
        if not now[old]:
            process_set.lose([rank for rank in old if rank not in (before or ())])
    return bool(of_survivors)


def _adopt_existing_sets(process_sets: Sequence[ProcessSet]) -> None:
    """Bind a new rank's process sets to those already registered: the other ranks take no part in registering more."""
    existing = registry.registered()
    for process_set in process_sets:
        ranks = registry.checked(process_set.ranks or (), session.size())
        if ranks in existing.values():
            registry.register([process_set], ranks)
        else:
            _LOG.warning("the ranks of this job have no process set %s, which this new rank names", list(ranks))


def _is_dynamic() -> bool:
    return _dynamic == session.generation() or session.setting("HVD_DYNAMIC_PROCESS_SETS") == "1"


def _register_all(process_sets: Sequence[ProcessSet]) -> None:
    """Register the sets of all ranks, then raise if this rank has listed one twice, which other ranks may not have."""
    size = session.size()
    defined = [[registry.checked(ranks, size) for ranks in _definitions(process_set)] for process_set in process_sets]
    here = [tuple(range(size)), *map(_members_for_this_rank, defined)]
    twice = [number for number in range(len(process_sets)) if here[number + 1] in here[: number + 1]]
    for number, process_set in enumerate(process_sets):
        for ranks in defined[number]:
            registry.register([] if number in twice else [process_set], ranks)
    if twice:
        raise ValueError(
            f"Horovod could not be initialized because process_sets entry number {twice[0]} is a duplicate: "
            f"{process_sets[twice[0]]}"
        )


def _members_for_this_rank(definitions: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the members that an entry has on this rank: of several communicators, those of this rank's."""
    return next((ranks for ranks in definitions if session.rank() in ranks), definitions[0])


def _definitions(process_set: ProcessSet) -> list[Iterable[int]]:
    """Return the member lists to register; for a communicator, which differs between ranks, those of every rank."""
    if process_set.mpi_comm is None:
        return [process_set.ranks or []]
    members = process_set.mpi_comm.allgather(session.rank())
    rows = registry.gather_rows("process_set.members", [registry.flags(members)])
    return [registry.members(row) for row in dict.fromkeys(rows)]
