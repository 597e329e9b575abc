"""Resize: a living cluster grows or shrinks. Who stays keeps process and variables; others leave, or come.

Who leaves ends first, by itself. Then the others get their numbers, from 0 on, the oldest first; within a cell, in
which they wait in ``elastic.run``, they keep those that they have. From there on a place without a process is that of a
dead rank, and whatever interrupts the resize, a respawn finishes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import Ask, Forget, Renumber, ResizeRequested, Send
from hvd_kernel.cluster.ranks.procedure import Flow, named
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.rejoin import Rejoin, Respawned
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.messages import Resized


@dataclass(frozen=True)
class ResizeOutcome:
    """What became of it. Numbers of ranks that have left are those from before, all others those of now."""

    before: int  # ranks
    n: int
    left: tuple[int, ...] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)  # of those that stayed: before -> now
    given: Respawned = field(default_factory=lambda: Respawned((), 0))  # the fresh ranks, and what they have


class Resize(Rejoin):
    """One change of size."""

    def __init__(self, asked: ResizeRequested, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(asked.request, ranks, patience, far=far, restore=asked.restore)
        self._asked = asked

    def run(self) -> Flow[ResizeOutcome]:
        """Have as many ranks as are asked for."""
        ranks, n, before = self.ranks, self._asked.n, self.ranks.n
        silent = yield from self.look()
        in_cell = self._asked.in_cell
        leaving = {rank for rank in ranks.everybody if rank >= n} if in_cell else ranks.leavers(n, self._asked.drop)
        self._check(leaving, silent)
        if not in_cell:
            yield from self.await_cell(f"`%hvd resize {n}`")
        yield from self._dismiss(leaving - ranks.dead)
        if ranks.dead:  # who waits for one of them must hear of it: of numbers that are gone nobody hears any more
            yield Forget(frozenset(ranks.dead))
        numbers = ranks.resize(n, leaving, by_age=not in_cell)
        yield Send(Resized(n, numbers))
        yield Renumber(n, numbers)
        given = yield from self.rejoin()
        return ResizeOutcome(before, n, tuple(sorted(leaving)), numbers, given)

    def _check(self, leaving: set[int], silent: set[int]) -> None:
        ranks = self.ranks
        if far := ranks.everybody - ranks.here:
            raise failure.not_resizable(self._asked.n, far, ranks.engine)
        if ranks.everybody <= ranks.dead:
            raise failure.all_dead(ranks.n)
        if ranks.everybody - ranks.dead <= leaving:
            raise ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
        if stuck := silent - leaving:
            each, it = ",".join(map(str, sorted(stuck))), "it" if len(stuck) == 1 else "them"
            remedy = f"`%hvd stacks` shows where, `%hvd respawn {each} --force` replaces {it}"
            raise ClusterError(f"{named(stuck)} not answering: {remedy}")

    def _dismiss(self, leaving: set[int]) -> Flow[None]:
        """Have ranks end as a process that is done does; kill those that do not."""
        if not leaving:
            return
        self.ranks.leaving |= leaving
        yield Ask(self.ticket(), "leave", frozenset(leaving), {})
        if not (yield from self.ended(leaving)):
            yield from self.end(leaving)
