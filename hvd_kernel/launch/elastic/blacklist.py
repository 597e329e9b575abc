"""Blacklist of slots and hosts whose workers have failed: the slot first, the host after some of its slots.

With a cooldown range the n-th time of a slot or host lasts ``MIN * 2^n + U(0,1) * MIN`` seconds, between MIN and MAX;
without one it lasts for good. A failure while it lasts changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import inf

from hvd_kernel.launch.elastic.assignment import Slot

_FAILURES = 3
"""Of a slot until it is left out, where it would be for good."""
_MOST = 60  # doublings: more mean nothing, and overflow a float


def cooldown(times: int, least: float, most: float, chance: float) -> float:
    """Return the seconds of a slot's or host's n-th time; ``chance``: a random number between 0 and 1.

    >>> [cooldown(times, 1.0, 10.0, 0.5) for times in (1, 2, 3, 4)]
    [2.5, 4.5, 8.5, 10.0]
    """
    return max(least, min(least * 2.0 ** min(times, _MOST) + chance * least, most))


class Blacklist:
    """What is left out, and until when.

    Parameters
    ----------
    cooldown_s
        The range; None: for good.
    slot_failures, host_failures
        As in Settings.
    chance
        Returns a random number between 0 and 1.
    """

    def __init__(
        self,
        cooldown_s: tuple[float, float] | None,
        slot_failures: int | None,
        host_failures: int,
        chance: Callable[[], float],
    ) -> None:
        self._range = cooldown_s
        self._slot_failures = slot_failures or (1 if cooldown_s else _FAILURES)
        self._host_failures = host_failures
        self._chance = chance
        self._failures: Counter[Slot] = Counter()  # since it was last left out
        self._times: Counter[Slot | str] = Counter()
        self._until: dict[Slot | str, float] = {}
        self._lost: set[str] = set()  # hosts that are out because they did not answer

    def fail(self, slot: Slot, size: int, now: float) -> str:
        """Count a failure in a slot of a host of ``size`` slots; return what is left out for it, as a sentence."""
        host = slot[0]
        self._failures[slot] += 1
        if self._failures[slot] < self._slot_failures or {slot, host} & self.out(now):
            return ""
        told = f"slot {slot[1]} of {host} is left out {self._leave_out(slot, now)}"
        slots = [each for each in self.out(now) if each[0] == host and not isinstance(each, str)]
        if len(slots) < min(self._host_failures, size):
            return told
        for each in slots:
            del self._until[each]  # what comes back is the whole host
        return f"{host} is left out {self._leave_out(host, now)}"

    def lose(self, host: str, now: float) -> str:
        """Leave out a host that does not answer; return it as a sentence."""
        self._lost.add(host)
        return f"{host} is left out {self._leave_out(host, now)}"

    def listed(self, hosts: Collection[str]) -> None:
        """Take note of discovery's answer: a lost host that is in none counts as another one when it comes back."""
        for host in self._lost - set(hosts):
            self._lost.discard(host)
            self._until.pop(host, None)

    def out(self, now: float) -> set[Slot | str]:
        """Return the slots, and the names of hosts, that are left out."""
        return {each for each, until in self._until.items() if until > now}

    def next_return(self, now: float) -> float:
        """Return when the next of them is back; infinity: none ever."""
        return min((until for until in self._until.values() if until > now), default=inf)

    def _leave_out(self, what: Slot | str, now: float) -> str:
        self._times[what] += 1
        if not isinstance(what, str):
            self._failures[what] = 0
        seconds = inf if self._range is None else cooldown(self._times[what], *self._range, self._chance())
        self._until[what] = now + seconds
        return f"for {seconds:.1f} s" if seconds < inf else "from here on"
