"""Process sets: ranks that take part in a collective together. Horovod's names, sentences and rules.

Words.
  set         some ranks, by an id that all ranks share; 0 is all of them
  registered  known to the engine of this generation; what a shutdown ends is not registered any more
  dynamic     sets may be added and removed after ``init``
  reset       the ranks leave their communicator and make another; sets that all of them knew are registered again
  fresh       a rank that stands for one that has died: it knew no sets, and gets those of the others
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from hvd_kernel.core import session
from hvd_kernel.errors import NotInitialized

_WHAT_IT_TAKES = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
_NOT_DYNAMIC = "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
_UNKNOWN = "Process set provided does not exist, or has not been registered."

_known: dict[int, tuple[int, ...]] = {}  # the registered sets of _generation
_generation = 0
_bound: list[ProcessSet] = []  # what the program holds of them, in the order in which they were registered
_comm: tuple[int, Any] = (-1, None)  # a generation, and the communicator that init was given for it
_dynamic = -1  # the generation for which init(process_sets="dynamic") was called
_unfinished: tuple[int, _Held] | None = None  # a generation in which a reset failed, and what it had to bring back
_lent: list[tuple[int, Any]] = []  # a generation, and memory that its core may read: also after an interrupted wait
_SET, _KNOWING, _DYNAMIC, _FRESH = range(4)  # what a row of a reset is: a set, or the begin of such a rank's sets


class ProcessSet:
    """Ranks that take part in a collective together: a list of ranks, or an mpi4py communicator of them.

    It can be used once it is registered, by ``init`` or ``add_process_set``. Before that, and after ``shutdown`` or
    ``remove_process_set``, ``process_set_id``, ``size()``, ``rank()`` and ``included()`` are None.

    Horovod's page: https://horovod.readthedocs.io/en/stable/process_set_include.html

    Parameters
    ----------
    ranks_or_comm
        Ranks of all (int, in any order), or an mpi4py communicator.

    Raises
    ------
    ValueError
        It is neither.

    Examples
    --------
    >>> print(hvd.ProcessSet([2, 0]))
    ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)

    On two ranks:

    >>> hvd.shutdown()
    >>> second = hvd.ProcessSet([1])
    >>> hvd.init(process_sets=[second])
    >>> second.process_set_id, second.size(), second.included() == (hvd.rank() == 1)
    (1, 1, True)
    >>> if second.included():
    ...     assert hvd.allreduce(torch.tensor(5.0), process_set=second) == 5
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.mpi_comm: Any = None
        self._ranks: list[int] | None = None
        self._id = 0
        self._generation = -1
        if hasattr(ranks_or_comm, "Get_size"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self._ranks = sorted(ranks_or_comm)
        except TypeError:
            raise ValueError(_WHAT_IT_TAKES) from None
        if any(not isinstance(rank, int) for rank in self._ranks):
            raise ValueError(_WHAT_IT_TAKES)

    @property
    def process_set_id(self) -> int | None:
        """The id; None while the set is not registered."""
        return self._id if self._generation == session.generation() and session.is_initialized() else None

    @property
    def ranks(self) -> list[int] | None:
        """The member ranks, ascending; None while they are not known (a communicator, not yet registered)."""
        return self._ranks

    def size(self) -> int | None:
        """Return the number of members; None while not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's number in the set; None while not registered.

        Raises
        ------
        ValueError
            This process is no member.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        if session.rank() not in self.ranks:
            raise ValueError("Process is not part of provided process set.")
        return self.ranks.index(session.rank())

    def included(self) -> bool | None:
        """Tell whether this process is a member; None while not registered."""
        return None if self.process_set_id is None or self.ranks is None else session.rank() in self.ranks

    def bind(self, number: int, ranks: Iterable[int]) -> None:
        """Take over what the engine knows the set by."""
        self._id, self._ranks, self._generation = number, list(ranks), session.generation()

    def invalidate(self) -> None:
        """Forget the id: the set is gone."""
        self._generation = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the set itself: a copied layer reduces over the very ranks of the one that it is a copy of."""
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Travel as ranks: what is pickled comes back as the set of these ranks that is registered there, if one is."""
        return _arrived, (type(self), self.mpi_comm if self._ranks is None else self._ranks)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """All ranks, always registered."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def process_set_id(self) -> int | None:
        """The id: 0."""
        return 0

    @property
    def ranks(self) -> list[int] | None:
        """All ranks; None while not initialised."""
        return list(range(session.size())) if session.is_initialized() else None

    def __reduce__(self) -> str:
        """Name the one that there is: what is pickled comes back as it, in every process."""
        return "global_process_set"

    def __repr__(self) -> str:
        """Return its name: the default of every ``process_set=``, as help() shows it."""
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet()


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
    _join(comm, dynamic=process_sets == "dynamic")
    if process_sets and process_sets != "dynamic":
        _register_all(list(process_sets))


def reset_communicator(known: session.KnownPeers | None = None) -> None:
    """Leave the other ranks and join them again: same communicator, same sets. All ranks call this together.

    A set comes back if all ranks knew it: what one of them was kept from adding or removing has not happened.
    """
    _reset(_chosen(), _hold(), known)


def reset_to_all_ranks(*, fresh: bool = False) -> None:
    """Do as ``reset_communicator`` with all ranks that there are, whatever communicator this one had chosen."""
    _reset(None, _hold() if _chosen() is None else _NOTHING, fresh=fresh)


def _reset(comm: Any, held: _Held, known: session.KnownPeers | None = None, *, fresh: bool = False) -> None:
    global _unfinished  # noqa: PLW0603 - of the process, as the engine
    session.shutdown()
    _unfinished = session.generation(), held
    _join(comm, dynamic=False, known=known)
    _unfinished = session.generation(), held
    _bring_back(held, fresh=fresh)
    _unfinished = None


def _join(comm: Any, *, dynamic: bool, known: session.KnownPeers | None = None) -> None:
    global _comm, _dynamic  # noqa: PLW0603 - of the process, as the engine
    before = session.generation()
    session.init(comm, known)
    if session.generation() != before:
        _comm = session.generation(), comm
        global_process_set.mpi_comm = comm if hasattr(comm, "Get_size") else None
    if dynamic:
        _dynamic = session.generation()


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
        mine = _checked(ranks, engine.size)
        if mine in _registered().values():
            raise ValueError(f"Attempted to add a duplicate process set: {added}")
        _register([added], mine)
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
    _registered().pop(number, None)
    process_set.invalidate()
    return outcome is not None and outcome.number == 1


def set_id(process_set: ProcessSet, doing: str) -> int:
    """Return the id of a set that this rank may do something in.

    Raises
    ------
    ValueError
        The set is not registered, or this rank is no member.
    """
    if process_set is global_process_set:
        return 0
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None:
        if not session.is_initialized():
            raise NotInitialized
        raise ValueError(f"{doing}: {_UNKNOWN}")
    if not process_set.included():
        raise ValueError(f"{doing}: Rank {session.rank()} is not a member of the provided process set.")
    return number


def check(process_set: ProcessSet) -> None:
    """Refuse a set that is not registered."""
    if process_set is not global_process_set and process_set.process_set_id is None:
        if not session.is_initialized():
            raise NotInitialized
        raise ValueError(_UNKNOWN)


@dataclass(frozen=True)
class _Held:
    """What a reset has to bring back: held until it has, because the ranks may have to try more than once."""

    sets: tuple[tuple[int, ...], ...] = ()
    objects: tuple[ProcessSet, ...] = ()
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
    _global, *sets = _registered().values()
    objects = tuple(one for one in _bound if one.process_set_id is not None)
    return _Held(tuple(sets), objects, dynamic)


def _bring_back(held: _Held, *, fresh: bool) -> None:
    """Register what every rank held that is not fresh, in the order of the lowest of them. Collective."""
    global _dynamic  # noqa: PLW0603 - of the process, as the engine
    size = session.size()
    begin = _FRESH if fresh else _DYNAMIC if held.dynamic else _KNOWING
    mine = [(_SET, *_flags(_checked(ranks, size))) for ranks in held.sets]
    told: list[tuple[int, list[tuple[int, ...]]]] = []
    for kind, *flags in _everyone("process_set.reset", [(begin, *bytes(size)), *mine]):
        if kind == _SET:
            told[-1][1].append(_members(flags))
        else:
            told.append((kind, []))
    if any(kind == _DYNAMIC for kind, _ in told):
        _dynamic = session.generation()
    knowing = [sets for kind, sets in told if kind != _FRESH]
    for ranks in (each for each in knowing[0] if all(each in sets for sets in knowing)) if knowing else ():
        _register([one for one in held.objects if one.ranks == list(ranks)], ranks)


def _arrived(kind: type[ProcessSet], ranks: Any) -> ProcessSet:
    """Return the set that has come from another process, or from a copy."""
    here = next((one for one in _bound if one.process_set_id is not None and one.ranks == ranks), None)
    if here is not None:
        return here
    made = kind(ranks)
    if made.ranks is not None and session.is_initialized() and tuple(made.ranks) in _registered().values():
        _register([made], tuple(made.ranks))
    return made


def _is_dynamic() -> bool:
    return _dynamic == session.generation() or session.setting("HVD_DYNAMIC_PROCESS_SETS") == "1"


def _registered() -> dict[int, tuple[int, ...]]:
    """Return the sets that the engine knows: none when it is a new one."""
    global _generation  # noqa: PLW0603 - of the process, as the engine
    if _generation != session.generation():
        _generation = session.generation()
        _known.clear()
        _bound.clear()
        _known[0] = tuple(range(session.size()))
    return _known


def _register_all(process_sets: list[ProcessSet]) -> None:
    """Register the sets of all ranks; then refuse those that this rank has named twice: others may not have."""
    size = session.size()
    defined = [[_checked(ranks, size) for ranks in _definitions(one)] for one in process_sets]
    own = [tuple(range(size)), *map(_own, defined)]
    twice = [number for number in range(len(process_sets)) if own[number + 1] in own[: number + 1]]
    for number, one in enumerate(process_sets):
        for ranks in defined[number]:
            _register([] if number in twice else [one], ranks)
    if twice:
        raise ValueError(
            f"Horovod could not be initialized because process_sets entry number {twice[0]} is a duplicate: "
            f"{process_sets[twice[0]]}"
        )


def _own(definitions: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the members that an entry has for this rank: of communicators its own one's."""
    return next((ranks for ranks in definitions if session.rank() in ranks), definitions[0])


def _register(objects: Iterable[ProcessSet], ranks: tuple[int, ...]) -> None:
    """Agree on the set with all ranks, unless it is there; a communicator's object is bound to the set it is of."""
    known = _registered()
    number = next((number for number, others in known.items() if others == ranks), None)
    if number is None:
        engine = session.engine()
        outcome = engine.wait(engine.add_process_set(ranks))
        assert outcome is not None
        number = outcome.number
        known[number] = ranks
    for one in objects:
        if one.mpi_comm is None or session.rank() in ranks:
            one.bind(number, ranks)
            if one not in _bound:
                _bound.append(one)


def _checked(ranks: Iterable[int], size: int) -> tuple[int, ...]:
    own = tuple(sorted(ranks))
    if not own:
        raise ValueError("A process set needs at least one rank.")
    if len(set(own)) != len(own):
        raise ValueError(f"A process set holds each rank once: {list(own)}.")
    wrong = [rank for rank in own if not 0 <= rank < size]
    if wrong:
        raise ValueError(
            f"Tried to register process set with invalid rank: {wrong[0]} (there are ranks 0 to {size - 1})."
        )
    return own


def _definitions(process_set: ProcessSet) -> list[Iterable[int]]:
    """Return the member lists to register: of a communicator, which differs from rank to rank, every rank's."""
    if process_set.mpi_comm is None:
        return [process_set.ranks or []]
    members = process_set.mpi_comm.allgather(session.rank())
    rows = _everyone("process_set.members", [_flags(members)])
    return [_members(row) for row in dict.fromkeys(rows)]


def _flags(members: Iterable[int]) -> tuple[int, ...]:
    inside = set(members)
    return tuple(int(rank in inside) for rank in range(session.size()))


def _members(flags: Iterable[int]) -> tuple[int, ...]:
    return tuple(rank for rank, inside in enumerate(flags) if inside)


def _everyone(name: str, rows: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return the rows of all ranks, in the order of ranks; they are of one length. Collective."""
    width = len(rows[0])
    sent = (ctypes.c_uint8 * (len(rows) * width))(*chain.from_iterable(rows))
    engine, loan = session.engine(), (session.generation(), sent)
    _lent[:] = [*(each for each in _lent if each[0] == loan[0]), loan]
    outcome = engine.wait(engine.allgather(name, [(ctypes.addressof(sent), (len(rows), width), 0)]))
    _lent.remove(loan)
    assert outcome is not None
    received = bytes(outcome.buffers[0])
    return [received[at : at + width] for at in range(0, len(received), width)]
