"""Respawn: dead ranks are replaced; those that live may be killed for it, where the user insists."""

from __future__ import annotations

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import ReplaceRequested
from hvd_kernel.cluster.ranks.procedure import Flow, named
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.rejoin import Rejoin, Respawned
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import spans


class Replace(Rejoin):
    """One replacement."""

    def __init__(self, asked: ReplaceRequested, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(asked.request, ranks, patience, far=far, restore=asked.restore)
        self._asked = asked

    def run(self) -> Flow[Respawned]:
        """Replace the dead, or those that are asked for."""
        ranks = self.ranks
        silent = set() if self._asked.force else (yield from self.look())
        chosen = set(ranks.dead if self._asked.ranks is None else self._asked.ranks)
        living = chosen - ranks.dead
        self._check(chosen, living)
        if not (chosen or ranks.bare or ranks.apart or self._asked.in_cell):
            return Respawned((), 0, silent=tuple(sorted(silent)))
        yield from self.end(living)
        if not self._asked.in_cell:
            yield from self.await_cell("`%hvd respawn`")
        return (yield from self.rejoin())

    def _check(self, chosen: set[int], living: set[int]) -> None:
        ranks = self.ranks
        if living and not self._asked.force:
            labels, it = spans(living), "it" if len(living) == 1 else "them"
            raise ClusterError(f"{named(living)} alive: `%hvd respawn {labels} --force` kills and replaces {it}")
        if left := ranks.dead - chosen:
            raise ClusterError(f"{named(left)} dead too: `%hvd respawn` alone replaces all that are dead")
        if chosen >= ranks.everybody:
            nobody = ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
            raise nobody if living else failure.all_dead(ranks.n)
        if (far := chosen - ranks.here) and not ranks.engine:
            raise ClusterError(f"{named(far)} on another host, where no spare can be: {failure.RESTART}")
