"""Spares of one virtual host: its agent has them, by the product's own quota, and the driver does not know of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from hvd_kernel.processes.spares import SpareQuota

WARM_S = (0.2, 4.0)


class VirtualSpares:
    """Spares that become ready or exit at random times; a spare that became a rank is removed."""

    def __init__(
        self, wanted: int, death: float, chance: random.Random, later: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self.quota, self.wanted = SpareQuota(wanted), wanted
        self.ready = self.coming = 0
        self.is_gone = False
        self._death, self._chance, self._later = death, chance, later

    def learn(self) -> None:
        """Record that a rank of the host has reached ``elastic.run``."""
        for _ in range(self.quota.missing):
            self.quota.start()
            self.coming += 1
            self._later(self._chance.uniform(*WARM_S), self._end_or_be_ready)
        assert self.ready + self.coming <= self.wanted

    def _end_or_be_ready(self) -> None:
        if self.is_gone:
            return
        self.coming -= 1
        if self._chance.random() < self._death:
            self.quota.end()
            self.learn()
        else:
            self.ready += 1

    def take(self) -> bool:
        """Have one become a rank; False: none is ready."""
        if not self.ready:
            return False
        self.ready -= 1
        self.quota.use()
        return True
