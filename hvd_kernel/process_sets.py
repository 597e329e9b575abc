"""The global process set: all ranks. Every collective takes ``process_set``, as in Horovod."""

from __future__ import annotations

from hvd_kernel import _session
from hvd_kernel.errors import NotInitialized


class ProcessSet:
    """Ranks that take part in a collective together."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int] | None:
        """The member ranks; None while not initialised."""
        size = self.size()
        return None if size is None else list(range(size))

    def size(self) -> int | None:
        """Return the number of members; None while not initialised."""
        return _session.size() if _session.is_initialized() else None

    def rank(self) -> int | None:
        """Return this process's number in the set; None while not initialised."""
        return _session.rank() if _session.is_initialized() else None

    def included(self) -> bool | None:
        """Tell whether this process is a member; None while not initialised."""
        return True if _session.is_initialized() else None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet()


def check(process_set: object) -> None:
    """Refuse a set that the core does not know."""
    if process_set is not global_process_set:
        if not _session.is_initialized():
            raise NotInitialized
        raise ValueError("Process set provided does not exist, or has not been registered.")
