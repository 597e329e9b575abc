"""Registry of process sets: those that the engine of this generation knows, and the program's objects for them.

Terms as in process_sets.py, which has the operations of a program on sets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Self

from hvd_kernel.core import session

_WHAT_IT_TAKES = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"

_registered: dict[int, tuple[int, ...]] = {}  # the registered sets of _generation
_generation = 0
_bound: list[ProcessSet] = []  # the program's objects for them, in the order in which they were registered
_lent: list[tuple[int, Any]] = []  # a generation, and memory that its core may read, also after an interrupted wait


class ProcessSet:
    """Ranks that take part in a collective together: a list of ranks, or an mpi4py communicator of them.

    It can be used once it is registered, by ``init`` or ``add_process_set``. Before that, and after ``shutdown`` or
    ``remove_process_set``, ``process_set_id``, ``size()``, ``rank()`` and ``included()`` are None.

    Horovod's page: https://horovod.readthedocs.io/en/stable/process_set_include.html

    Parameters
    ----------
    ranks_or_comm
        Global ranks (int, in any order), or an mpi4py communicator.

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
        """Why a set is no longer registered; "" if there is no reason to report."""
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
        """Return whether this process is a member; None while not registered."""
        return None if self.process_set_id is None or self.ranks is None else session.rank() in self.ranks

    def bind(self, number: int, ranks: Iterable[int]) -> None:
        """Set the id and the members that the engine has registered."""
        self._id, self._ranks, self._generation, self.lost = number, list(ranks), session.generation(), ""

    def invalidate(self) -> None:
        """Forget the id of a set that was removed."""
        self._generation = -1

    def lose(self, gone: Iterable[int]) -> None:
        """Record that some members have left the job: a set is restored only with all of its members."""
        self.lost = (
            f"The process set of ranks {self._ranks} is not registered any more: {list(gone)} of them left the job. "
            "Make another one of the ranks that there are now."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the set itself: a copied layer reduces over the same ranks as the original."""
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as ranks; unpickling returns the set of these ranks that is registered in that process, if any."""
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
        """Pickle by name: unpickling returns the global set of that process."""
        return "global_process_set"

    def __repr__(self) -> str:
        """Return the name, which help() shows as the default of every ``process_set=``."""
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet()


def _arrived(kind: type[ProcessSet], ranks: Any) -> ProcessSet:  # pickles hold this name
    """Return the registered set of these ranks, or a new set."""
    existing = next((process_set for process_set in objects() if process_set.ranks == ranks), None)
    if existing is not None:
        return existing
    process_set = kind(ranks)
    members = process_set.ranks
    if members is not None and session.is_initialized() and tuple(members) in registered().values():
        register([process_set], tuple(members))
    return process_set


def objects() -> tuple[ProcessSet, ...]:
    """Return the program's objects for registered sets, in the order in which they were registered."""
    return tuple(process_set for process_set in _bound if process_set.process_set_id is not None)


def registered() -> dict[int, tuple[int, ...]]:
    """Return the sets that the engine knows: of a new engine only the set of all ranks."""
    global _generation  # noqa: PLW0603 - of the process, as the engine
    if _generation != session.generation():
        _generation = session.generation()
        _registered.clear()
        _bound.clear()
        _registered[0] = tuple(range(session.size()))
    return _registered


def register(objects: Iterable[ProcessSet], ranks: tuple[int, ...]) -> None:
    """Register a set with all ranks, unless it exists; an object of a communicator is bound only on its members."""
    numbers = registered()
    number = next((number for number, members in numbers.items() if members == ranks), None)
    if number is None:
        engine = session.engine()
        outcome = engine.wait(engine.add_process_set(ranks))
        assert outcome is not None
        number = outcome.number
        numbers[number] = ranks
    for process_set in objects:
        if process_set.mpi_comm is None or session.rank() in ranks:
            process_set.bind(number, ranks)
            if process_set not in _bound:
                _bound.append(process_set)


def renumbered(ranks: tuple[int, ...], before: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of ranks after a reset, () unless all of them still exist.

    Parameters
    ----------
    ranks
        Their numbers before the reset.
    before
        Number of each existing rank before the reset, -1 if it is new; None: no number has changed.

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
        There is no rank, one is listed twice, or one does not exist.
    """
    members = tuple(sorted(ranks))
    if not members:
        raise ValueError("A process set needs at least one rank.")
    if len(set(members)) != len(members):
        raise ValueError(f"A process set holds each rank once: {list(members)}.")
    wrong = [rank for rank in members if not 0 <= rank < size]
    if wrong:
        raise ValueError(
            f"Tried to register process set with invalid rank: {wrong[0]} (there are ranks 0 to {size - 1})."
        )
    return members


def flags(members: Iterable[int]) -> tuple[int, ...]:
    """Return 1 for each rank that is a member, 0 for each other rank."""
    inside = set(members)
    return tuple(int(rank in inside) for rank in range(session.size()))


def members(flags: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks whose flags are set."""
    return tuple(rank for rank, inside in enumerate(flags) if inside)


def gather_rows(name: str, rows: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return the rows of all ranks, in the order of ranks; all rows have the same length. Collective."""
    width = len(rows[0])
    sent = (ctypes.c_uint8 * (len(rows) * width))(*chain.from_iterable(rows))
    engine, loan = session.engine(), (session.generation(), sent)
    _lent[:] = [*((generation, memory) for generation, memory in _lent if generation == loan[0]), loan]
    outcome = engine.wait(engine.allgather(name, [(ctypes.addressof(sent), (len(rows), width), 0)]))
    _lent.remove(loan)
    assert outcome is not None
    received = bytes(outcome.buffers[0])
    return [received[at : at + width] for at in range(0, len(received), width)]
