"""Blacklist of slots and hosts whose workers have failed: a slot first, its host after several slots.

With a cooldown range the n-th exclusion of a slot or host lasts ``MIN * 2^n + U(0,1) * MIN`` seconds, between MIN and
MAX; without one it is permanent. A failure during an exclusion has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import inf

from hvd_kernel.launch.elastic.assignment import Slot

PERMANENTLY = "permanently"
"""In messages: the duration of an exclusion without a cooldown."""
_PERMANENT_FAILURES = 3
"""Failures after which a slot is excluded, if exclusions are permanent."""
_MAX_DOUBLINGS = 60  # more change nothing, and overflow a float


def cooldown(times: int, least: float, most: float, fraction: float) -> float:
    """Return the seconds of the n-th exclusion of a slot or host; ``fraction``: a random number between 0 and 1.

    >>> [cooldown(times, 1.0, 10.0, 0.5) for times in (1, 2, 3, 4)]
    [2.5, 4.5, 8.5, 10.0]
    """
    return max(least, min(least * 2.0 ** min(times, _MAX_DOUBLINGS) + fraction * least, most))


class Blacklist:
    """Excluded slots and hosts, each until a time.

    Parameters
    ----------
    cooldown_s
        The range of cooldowns; None: exclusions are permanent.
    slot_failures, host_failures
        As in DriverSettings.
    random_fraction
        Returns a random number between 0 and 1.
    """

    def __init__(
        self,
        cooldown_s: tuple[float, float] | None,
        slot_failures: int | None,
        host_failures: int,
        random_fraction: Callable[[], float],
    ) -> None:
        self._range = cooldown_s
        self._slot_failures = slot_failures or (1 if cooldown_s else _PERMANENT_FAILURES)
        self._host_failures = host_failures
        self._random_fraction = random_fraction
        self._failures: Counter[Slot] = Counter()  # since the slot's last exclusion
        self._times: Counter[Slot | str] = Counter()
        self._until: dict[Slot | str, float] = {}
        self._lost: set[str] = set()  # hosts that are excluded because they did not answer

    def fail(self, slot: Slot, size: int, now: float) -> str:
        """Count a failure in a slot of a host of ``size`` slots; return a clause on what it excludes, or ""."""
        host = slot[0]
        self._failures[slot] += 1
        if self._failures[slot] < self._slot_failures or {slot, host} & self.out(now):
            return ""
        clause = f"slot {slot[1]} of {host} is left out {self._exclude(slot, now)}"
        slots = [entry for entry in self.out(now) if entry[0] == host and not isinstance(entry, str)]
        if len(slots) < min(self._host_failures, size):
            return clause
        for failed_slot in slots:
            del self._until[failed_slot]  # the whole host returns at once
        return f"{host} is left out {self._exclude(host, now)}"

    def lose(self, host: str, now: float) -> str:
        """Exclude a host that does not answer; return a clause on that."""
        self._lost.add(host)
        return f"{host} is left out {self._exclude(host, now)}"

    def update(self, hosts: Collection[str]) -> None:
        """Forget lost hosts that discovery no longer lists: if they return, they may be used at once."""
        for host in self._lost - set(hosts):
            self._lost.discard(host)
            self._until.pop(host, None)

    def out(self, now: float) -> set[Slot | str]:
        """Return the excluded slots, and the names of excluded hosts."""
        return {entry for entry, until in self._until.items() if until > now}

    def next_return(self, now: float) -> float:
        """Return the time at which the next exclusion ends; infinity if none does."""
        return min((until for until in self._until.values() if until > now), default=inf)

    def _exclude(self, entry: Slot | str, now: float) -> str:
        self._times[entry] += 1
        if not isinstance(entry, str):
            self._failures[entry] = 0
        seconds = inf if self._range is None else cooldown(self._times[entry], *self._range, self._random_fraction())
        self._until[entry] = now + seconds
        return f"for {seconds:.1f} s" if seconds < inf else PERMANENTLY
