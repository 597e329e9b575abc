"""Quota of a host's spare processes: how many are to be started now. Pure: no process, no clock."""

from __future__ import annotations

_DEATHS = 3
"""Of spares one after the other, none of which has become a rank: as a slot, they are given up then."""


class SpareQuota:
    """Counts them. A spare's end is no failure of a rank: it uses up no restart, and leaves out no slot.

    Parameters
    ----------
    wanted
        How many are to wait.

    Examples
    --------
    >>> quota = SpareQuota(2)
    >>> quota.start(quota.missing)
    >>> quota.end()
    >>> quota.missing
    1
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._there = 0
        self._deaths = 0

    @property
    def missing(self) -> int:
        """How many are to be started."""
        return 0 if self.is_used_up else max(0, self._wanted - self._there)

    @property
    def is_used_up(self) -> bool:
        """Whether so many have ended that no more are started."""
        return self._deaths >= _DEATHS

    def start(self, count: int = 1) -> None:
        """Count some that have been started."""
        self._there += count

    def take(self) -> None:
        """Count one that becomes a rank: spares are of use here."""
        self._there -= 1
        self._deaths = 0

    def end(self) -> None:
        """Count one that has ended while it waited."""
        self._there -= 1
        self._deaths += 1
