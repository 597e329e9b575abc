"""Registry of process sets: what the engine of this generation knows, and the objects that a program holds of it.

Terms as in process_sets.py, which has what a program does with sets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Self

from hvd_kernel.core import session

_WHAT_IT_TAKES = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"

_known: dict[int, tuple[int, ...]] = {}  # the registered sets of _generation
_generation = 0
_bound: list[ProcessSet] = []  # what the program holds of them, in the order in which they were registered
_lent: list[tuple[int, Any]] = []  # a generation, and memory that its core may read: also after an interrupted wait


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
        self.lost = ""
        """Why a set that was registered is not any more; empty where there is nothing to say."""
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
            This process is not a member.
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
        self._id, self._ranks, self._generation, self.lost = number, list(ranks), session.generation(), ""

    def invalidate(self) -> None:
        """Forget the id: the set is gone."""
        self._generation = -1

    def lose(self, gone: Iterable[int]) -> None:
        """Take note that some members have left the job: no set comes back without all of its members."""
        self.lost = (
            f"The process set of ranks {self._ranks} is not registered any more: {list(gone)} of them left the job. "
            "Make another one of the ranks that there are now."
        )

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


def _arrived(kind: type[ProcessSet], ranks: Any) -> ProcessSet:
    """Return the set that has come from another process, or from a copy."""
    here = next((one for one in _bound if one.process_set_id is not None and one.ranks == ranks), None)
    if here is not None:
        return here
    made = kind(ranks)
    if made.ranks is not None and session.is_initialized() and tuple(made.ranks) in registered().values():
        register([made], tuple(made.ranks))
    return made


def objects() -> tuple[ProcessSet, ...]:
    """Return what the program holds of the registered sets, in the order in which they were registered."""
    return tuple(one for one in _bound if one.process_set_id is not None)


def registered() -> dict[int, tuple[int, ...]]:
    """Return the sets that the engine knows: none when it is a new one."""
    global _generation  # noqa: PLW0603 - of the process, as the engine
    if _generation != session.generation():
        _generation = session.generation()
        _known.clear()
        _bound.clear()
        _known[0] = tuple(range(session.size()))
    return _known


def register(objects: Iterable[ProcessSet], ranks: tuple[int, ...]) -> None:
    """Agree on the set with all ranks, unless it is there; a communicator's object is bound to the set it is of."""
    known = registered()
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


def renumbered(ranks: tuple[int, ...], before: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers that ranks have after a reset, none where not all of them are there any more.

    Parameters
    ----------
    ranks
        Their numbers before it.
    before
        Of each rank that there is now its number before, -1: it was not there; None: nothing has changed.

    Examples
    --------
    >>> renumbered((1, 3), [3, 0, 1]), renumbered((1, 2), [3, 0, 1])
    ((0, 2), ())
    """
    if before is None:
        return ranks
    now = {old: rank for rank, old in enumerate(before) if old >= 0}
    return tuple(sorted(now[rank] for rank in ranks)) if all(rank in now for rank in ranks) else ()


def checked(ranks: Iterable[int], size: int) -> tuple[int, ...]:
    """Return the ranks of a set, ascending.

    Raises
    ------
    ValueError
        There are none, one is there twice, or there is no such rank.
    """
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


def flags(members: Iterable[int]) -> tuple[int, ...]:
    """Return of every rank whether it is a member: 1, or 0."""
    inside = set(members)
    return tuple(int(rank in inside) for rank in range(session.size()))


def members(flags: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks whose flags are set."""
    return tuple(rank for rank, inside in enumerate(flags) if inside)


def everyone(name: str, rows: Sequence[tuple[int, ...]]) -> list[bytes]:
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
