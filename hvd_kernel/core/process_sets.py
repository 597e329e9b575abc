"""Process sets: ranks that take part in a collective together. Horovod's names, sentences and rules.

Terms.
  set         some ranks, by an id that all ranks share; 0 is all of them
  registered  known to the engine of this generation; what a shutdown ends is not registered any more
  dynamic     sets may be added and removed after ``init``
  reset       the ranks leave their communicator and make another; sets that all of them knew are registered again
  fresh       a rank that has met nobody yet: it knew no sets, and gets those of the others
  before      of each rank its number before a reset, -1: it was not there
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
_DRIVERS_OWN_S = 60.0  # the driver ends the job when too few ranks are there in time: it should come to say so

_comm: tuple[int, Any] = (-1, None)  # a generation, and the communicator that init was given for it
_dynamic = -1  # the generation for which init(process_sets="dynamic") was called
_has_joined = False  # this process has been in a communicator of an elastic job
_unfinished: tuple[int, _Held] | None = None  # a generation in which a reset failed, and what it had to bring back
_SET, _KNOWING, _DYNAMIC, _FRESH = range(4)  # what a row of a reset is: a set, or the begin of such a rank's sets


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks; returns when the links to all of them are up. Does nothing while initialised.

    Parameters
    ----------
    comm
        None (the ranks are found from the environment, see topology), an mpi4py communicator, or a list of
        ranks of MPI_COMM_WORLD.
    process_sets
        None, a list of process sets that all ranks register now, or "dynamic": they may come and go later.

    Raises
    ------
    ValueError
        The environment or an argument cannot be used (ConfigError names it), or the ranks are of different versions.
        A set is there twice, or names a rank that does not exist: the ranks are initialised then, without it.
    HorovodInternalError
        Not all ranks have come within HVD_START_TIMEOUT seconds (HvdTimeout).

    Examples
    --------
    >>> hvd.init()  # alone, or as hvdrun, mpirun, torchrun or srun have started the ranks
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


def reset_communicator(known: session.KnownPeers | None = None) -> None:
    """Leave the other ranks and join them again: same communicator, same sets. All ranks call this together.

    A set comes back if all ranks knew it: what one of them was kept from adding or removing has not happened. In an
    elastic job there may be other ranks, by other numbers: a set comes back if all of its members do.
    """
    _reset(_chosen(), _hold(), known)


def reset_to_all_ranks(*, fresh: bool = False, before: Sequence[int] | None = None) -> None:
    """Do as ``reset_communicator`` with all ranks that there are, whatever communicator this one had chosen.

    Parameters
    ----------
    fresh
        This rank has met nobody yet.
    before
        Of each rank there is now its number before; None: all have theirs still.
    """
    _reset(None, _hold() if _chosen() is None else _NOTHING, fresh=fresh, before=before)


def leave_the_others() -> None:
    """Make this rank the only one of its communicator, until the next reset, which all ranks call together.

    Raises
    ------
    ValueError
        There are process sets: alone this rank could be in none of them.
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
    known: session.KnownPeers | None = None,
    *,
    fresh: bool = False,
    before: Sequence[int] | None = None,
) -> None:
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    session.shutdown()
    _unfinished = session.generation(), held
    if session.has_driver():
        _join_job(comm, held, pidfds={} if known is None else known.pidfds)
    else:
        _join(comm, dynamic=False, known=known, again=True)
        _unfinished = session.generation(), held
        _bring_back(held, fresh=fresh, before=before)
    _unfinished = None


def _join(comm: Any, *, dynamic: bool, known: session.KnownPeers | None = None, again: bool = False) -> None:
    global _comm, _dynamic  # noqa: PLW0603 - of the process, as the engine
    before = session.generation()
    session.init(comm, known, again=again)
    if session.generation() != before:
        _comm = session.generation(), comm
        global_process_set.mpi_comm = comm if hasattr(comm, "Get_size") else None
    if dynamic:
        _dynamic = session.generation()


def _join_job(
    comm: Any, held: _Held, sets: Sequence[ProcessSet] = (), pidfds: Mapping[int, int] = MappingProxyType({})
) -> None:
    """Join the ranks of an elastic job, at the place that its driver gives."""
    global _has_joined, _unfinished
    from hvd_kernel.core.driver.worker import worker  # noqa: PLC0415 - only such a job needs it

    if comm is not None:
        raise ConfigError("init(comm=...) cannot be used in an elastic job, whose ranks come and go: leave comm out.")
    session.connect_to_agent()
    patience_s = float(lookup.value("HVD_ELASTIC_TIMEOUT", os.environ)) + _DRIVERS_OWN_S
    worker().rendezvous(partial(_rendezvous, held, sets), pidfds, patience_s)
    _has_joined, _unfinished = True, None


def _rendezvous(held: _Held, sets: Sequence[ProcessSet], place: Place, watched: Mapping[int, int]) -> None:
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    session.shutdown()  # of a place before this, which has come to nothing
    rendezvous = session.Rendezvous(place.rank, place.size, place.address, place.port, place.secret, watched)
    session.set_rendezvous(rendezvous)
    _join(None, dynamic=held.dynamic, again=place.generation > 1)
    _unfinished = session.generation(), held
    is_newcomer = _bring_back(held, fresh=not _has_joined, before=place.before) and not _has_joined
    if is_newcomer:
        _bind_those_there_are(sets)
        session.refuse_collectives()
    elif sets:
        _register_all(sets)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set, and return it. All ranks call this, in the same order, also those that will not be members.

    Parameters
    ----------
    process_set
        A set that is not registered yet, or a list of ranks.

    Raises
    ------
    ValueError
        Sets are not dynamic, or there is such a set already, or no such rank; nothing has happened then. Before
        ``init``.

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
        mine = registry.checked(ranks, engine.size)
        if mine in registry.registered().values():
            raise ValueError(f"Attempted to add a duplicate process set: {added}")
        registry.register([added], mine)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; all ranks call this. Returns False where it is the global one, or not registered.

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
    """Return the id of a set that this rank may do something in.

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
    """Refuse a set that is not registered."""
    if process_set is not global_process_set and process_set.process_set_id is None:
        if not session.is_initialized():
            raise NotInitialized
        raise ValueError(_why_unknown(process_set))


def _why_unknown(process_set: ProcessSet) -> str:
    return (process_set.lost if isinstance(process_set, ProcessSet) else "") or _UNKNOWN


@dataclass(frozen=True)
class _Held:
    """What a reset has to bring back: held until it has, because the ranks may have to try more than once."""

    sets: tuple[tuple[int, ...], ...] = ()
    objects: tuple[tuple[ProcessSet, tuple[int, ...]], ...] = ()
    dynamic: bool = False


_NOTHING = _Held()


def _chosen() -> Any:
    return _comm[1] if _comm[0] == session.generation() else None


def _hold() -> _Held:
    """Return what is registered; after a reset that failed, what was before it."""
    if _unfinished is not None and _unfinished[0] == session.generation():
        return _unfinished[1]
    dynamic = _dynamic == session.generation()
    if not session.is_initialized():
        return _Held(dynamic=dynamic)
    everyone, *sets = registry.registered().values()
    bound = ((one, tuple(one.ranks or ())) for one in registry.objects())
    objects = tuple((one, ranks) for one, ranks in bound if ranks in {everyone, *sets})
    if any(ranks == everyone for _, ranks in objects):
        sets.append(everyone)  # it may not be that of all ranks afterwards
    return _Held(tuple(sets), objects, dynamic)


def _bring_back(held: _Held, *, fresh: bool, before: Sequence[int] | None = None) -> bool:
    """Register what every rank held that is not fresh, in the order of the lowest of them. Collective.

    Returns whether there was any that is not fresh.
    """
    global _dynamic  # noqa: PLW0603 - of the process, as the engine
    size = session.size()
    begin = _FRESH if fresh else _DYNAMIC if held.dynamic else _KNOWING
    now = {ranks: registry.renumbered(ranks, before) for ranks in held.sets}
    mine = [(_SET, *registry.flags(registry.checked(ranks, size))) for ranks in now.values() if ranks]
    told: list[tuple[int, list[tuple[int, ...]]]] = []
    for kind, *flags in registry.everyone("process_set.reset", [(begin, *bytes(size)), *mine]):
        if kind == _SET:
            told[-1][1].append(registry.members(flags))
        else:
            told.append((kind, []))
    if held.dynamic or any(kind == _DYNAMIC for kind, _ in told):
        _dynamic = session.generation()
    knowing = [sets for kind, sets in told if kind != _FRESH]
    for ranks in (each for each in knowing[0] if all(each in sets for sets in knowing)) if knowing else ():
        registry.register([one for one, old in held.objects if now[old] == ranks], ranks)
    for one, old in held.objects:
        if not now[old]:
            one.lose([rank for rank in old if rank not in (before or ())])
    return bool(knowing)


def _bind_those_there_are(process_sets: Sequence[ProcessSet]) -> None:
    """Have a newcomer's sets be those of the others, who are elsewhere: it cannot register what they do not have."""
    there = registry.registered()
    for one in process_sets:
        ranks = registry.checked(one.ranks or (), session.size())
        if ranks in there.values():
            registry.register([one], ranks)
        else:
            _LOG.warning("the ranks of this job have no process set %s, which this new rank names", list(ranks))


def _is_dynamic() -> bool:
    return _dynamic == session.generation() or session.setting("HVD_DYNAMIC_PROCESS_SETS") == "1"


def _register_all(process_sets: Sequence[ProcessSet]) -> None:
    """Register the sets of all ranks; then refuse those that this rank has named twice: others may not have."""
    size = session.size()
    defined = [[registry.checked(ranks, size) for ranks in _definitions(one)] for one in process_sets]
    own = [tuple(range(size)), *map(_own, defined)]
    twice = [number for number in range(len(process_sets)) if own[number + 1] in own[: number + 1]]
    for number, one in enumerate(process_sets):
        for ranks in defined[number]:
            registry.register([] if number in twice else [one], ranks)
    if twice:
        raise ValueError(
            f"Horovod could not be initialized because process_sets entry number {twice[0]} is a duplicate: "
            f"{process_sets[twice[0]]}"
        )


def _own(definitions: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the members that an entry has for this rank: of communicators its own one's."""
    return next((ranks for ranks in definitions if session.rank() in ranks), definitions[0])


def _definitions(process_set: ProcessSet) -> list[Iterable[int]]:
    """Return the member lists to register: of a communicator, which differs from rank to rank, every rank's."""
    if process_set.mpi_comm is None:
        return [process_set.ranks or []]
    members = process_set.mpi_comm.allgather(session.rank())
    rows = registry.everyone("process_set.members", [registry.flags(members)])
    return [registry.members(row) for row in dict.fromkeys(rows)]
