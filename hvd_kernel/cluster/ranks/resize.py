"""Resize: a living cluster grows or shrinks. Who stays keeps process and variables; others leave, or come.

Who leaves ends first, by itself. Then the others get their numbers, from 0 on, the oldest first; within a cell, in
which they wait in ``elastic.run``, they keep those that they have. From there on a place without a process is that of a
dead rank. A resize between cells that is cancelled is undone: ranks that were being added end. If ranks have been asked
to leave, the cluster keeps the others. These form a communicator again before the next cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import Action, Ask, Forget, Kill, Renumber, ResizeRequested, Send
from hvd_kernel.cluster.ranks.procedure import Flow, named
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.rejoin import Rejoin, Respawned
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import spans
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
        self._leaving: set[int] = set()  # asked to leave, by the numbers from before
        self._stayed: int | None = None  # ranks that have stayed, once they are renumbered

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
        self._stayed = before - len(leaving)
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
            labels, it = spans(stuck), "it" if len(stuck) == 1 else "them"
            remedy = f"`%hvd stacks` shows where, `%hvd respawn {labels} --force` replaces {it}"
            raise ClusterError(f"{named(stuck)} not answering: {remedy}")

    def _dismiss(self, leaving: set[int]) -> Flow[None]:
        """Have ranks end as a process that is done does; kill those that do not."""
        if not leaving:
            return
        self.ranks.leaving |= leaving
        self._leaving = leaving
        yield Ask(self.ticket(), "leave", frozenset(leaving), {})
        if not (yield from self.ended(leaving)):
            yield from self.end(leaving)

    def undo(self) -> Iterator[Action]:
        """Remove the ranks that were being added, or those that were asked to leave."""
        ranks, stayed = self.ranks, self._stayed
        removed = self._leaving if stayed is None else {rank for rank in ranks.everybody if rank >= stayed}
        if self._asked.in_cell or not removed:  # within a cell, the cell itself decides what follows
            return
        pids = frozenset(process.pid for rank in removed & ranks.living if (process := ranks.process(rank)) is not None)
        yield Forget(frozenset(removed | ranks.dead))
        n = ranks.n - len(removed)
        numbers = ranks.resize(n, removed, by_age=stayed is None)
        yield Kill(pids)
        yield Send(Resized(n, numbers))
        yield Renumber(n, numbers)
