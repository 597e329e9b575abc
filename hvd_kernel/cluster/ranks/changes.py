"""Changes of a cluster's ranks, as procedures of the membership: replace dead ranks, resize.

Both end with a rejoin: dead ranks get a new process, all ranks rendezvous, and fresh ranks receive the state that was
kept. Survivors lose nothing but their communicator. Ranks that die during a rejoin are replaced too: each try starts
from the ranks that are dead at that time. A rank counts as dead until it is in the new communicator, so a cancelled
rejoin can be repeated; and as bare until it has received the kept state, so the next rejoin restores it.

In a resize the leaving ranks exit first: between cells the newest, within a cell, in which all wait in ``elastic.run``,
those with the highest numbers. Then the survivors are numbered from 0, in the same order. From then on a new rank is
treated like a dead one. A cancelled resize between cells is undone: ranks that were being added are killed. If ranks
were already asked to leave, the cluster continues without them. The remaining ranks form a communicator before the next
cell.

Terms.
  survivor   a rank that has lived through the change
  fresh      a rank whose process was started to replace a dead one, or for a new rank; it receives the imports,
             functions and classes of earlier cells, and the variables that cells keep
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import (
    Action,
    AwaitCell,
    CellEnded,
    CommunicatorReady,
    Event,
    Forget,
    Kill,
    Query,
    Renumber,
    ReplaceRequested,
    ResizeRequested,
    Send,
)
from hvd_kernel.cluster.ranks.procedure import Flow, Procedure, WithLog, ranks_are
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.processes.channel.messages import ReplaceRanks, Resized, StartFailed, StopRank

_TRIES = 5
_RESTORES = 2  # tries to restore the kept state: packing or unpacking it may be what kills a rank
_LETHAL = "a rank died each time it was given; `%hvd respawn` tries again"
_HELLO_S = 0.05  # between two greetings
_MOVE_S = 600.0
_SIGN_S = 5.0  # for a rank to answer a query, or to be found dead
_END_S = 10.0  # for a process to exit, and for the other ranks to end the cell in which a rank was killed


@dataclass(frozen=True)
class Respawned:
    """The result of a replacement."""

    ranks: tuple[int, ...]  # the fresh ones
    source: int  # the rank that their variables were copied from
    restored: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)  # variable that could not be copied -> reason
    silent: tuple[int, ...] = ()  # ranks that do not answer, if no rank had to be replaced


class Rejoin(Procedure):
    """Base of requests that end with a rejoin.

    ``restore``: variables that fresh ranks receive in addition to the kept ones.
    """

    def __init__(self, request: int, ranks: RankTable, patience: float, *, far: bool, restore: tuple[str, ...]) -> None:
        super().__init__(request, ranks)
        self._patience = patience
        self._far = far
        self._restore = restore
        self._cell_ended = False
        self._start_error = ""  # why no replacement will start
        self._names: tuple[str, ...] = ()  # variables to copy

    def observe(self, event: Event) -> None:
        """Record an event."""
        super().observe(event)
        self._cell_ended |= isinstance(event, CellEnded)
        if isinstance(event, StartFailed):
            self._start_error = event.reason

    def find_silent(self) -> Flow[set[int]]:
        """Query every rank, so that a death of this moment is noticed; return the living ranks that do not answer."""
        ranks = self.ranks
        missing = yield from self._query_alive(ranks.all - ranks.dead, lambda missing: missing <= ranks.dead)
        return missing - ranks.dead

    def await_cell(self, remedy: str) -> Flow[None]:
        """Wait until no rank runs a cell; raise ClusterError with ``remedy`` if one still does."""
        yield AwaitCell(self.ticket())
        if not (yield from self.within(lambda: self._cell_ended, _END_S)):
            raise ClusterError(f"the other ranks still run the cell: interrupt it, then {remedy}")

    def end(self, chosen: set[int]) -> Flow[None]:
        """Kill ranks, and wait until they have exited."""
        ranks = self.ranks
        if chosen - ranks.dead:
            if ranks.engine:
                yield from (Send(StopRank(rank, 0.0)) for rank in sorted(chosen - ranks.dead))
            else:
                yield Kill(frozenset(ranks.members[rank].pid for rank in chosen - ranks.dead))
        if not (yield from self.await_exit(chosen)):
            left = ranks_are(chosen - ranks.dead)
            raise ClusterError(f"{left} not dead {_END_S:g} s after SIGKILL: stuck in a driver?")

    def await_exit(self, chosen: set[int]) -> Flow[bool]:
        """Wait until ranks have exited; return whether they have in time."""
        return (yield from self.within(lambda: chosen <= self.ranks.dead, _END_S))

    def rejoin(self) -> Flow[Respawned]:
        """Replace all dead ranks, form a communicator, and restore the kept state on the fresh ranks."""
        yield from self._form()
        for _ in range(_RESTORES):
            try:
                return (yield from self._restore_fresh())
            except ClusterError:
                if not (yield from self._explained_by_death(set())):
                    raise
            yield from self._form()
        return Respawned(tuple(sorted(self.ranks.bare)), 0, lost=dict.fromkeys(self._names, _LETHAL))

    def _query_alive(self, ranks: set[int], enough: Callable[[set[int]], bool]) -> Flow[set[int]]:
        """Query ranks until ``enough(missing)`` is true; return the ranks whose answer is missing."""
        ticket = self.ticket()
        yield Query(ticket, "hello", frozenset(ranks), {"channel": "control"}, urgent=True)
        answers = self.answers[ticket]
        yield from self.within(lambda: enough(ranks - answers.keys()), _SIGN_S)
        return ranks - answers.keys()

    # Forming the communicator.

    def _form(self) -> Flow[None]:
        ranks = self.ranks
        for _ in range(_TRIES):
            dead = set(ranks.dead)
            if dead == ranks.all:
                break
            try:
                yield from self._try_to_form(dead)
            except ClusterError:
                if not (yield from self._explained_by_death(dead)):
                    raise  # another try would fail too
            else:
                return
        if ranks.dead == ranks.all:
            raise failure.all_dead(ranks.n)
        raise WithLog(f"{ranks_are(ranks.dead)} dead again after {_TRIES} tries.")

    def _try_to_form(self, dead: set[int]) -> Flow[None]:
        yield from self._replace(dead)
        yield from self._introduce(dead)
        ranks = self.ranks
        answers = yield from self.rendezvous(dead, far=self._far, check=partial(self._check_alive, dead))
        ranks.admit({rank: content["device"] for rank, content in answers.items()}, dead)
        ranks.apart = False
        yield CommunicatorReady(ranks.generation)

    def _replace(self, dead: set[int]) -> Flow[None]:
        """Start processes for the dead ranks, and wait until their engines have registered."""
        ranks = self.ranks
        to_start = dead - (ranks.arrivals.keys() - ranks.fallen)  # arrivals of an earlier try are still starting
        ranks.drop_arrivals(to_start)
        if to_start:
            yield Forget(frozenset(to_start))
            if len(to_start) > ranks.spares:
                yield self.progress("no spare process is ready: starting one")
            yield Send(ReplaceRanks(sorted(to_start)))
        timer = yield from self.timer(self._patience)
        yield from self.until(lambda: dead <= ranks.arrivals.keys() or ranks.dead == ranks.all, timer)
        in_time = yield from self.until(
            lambda: bool(self._start_error) or self._died(dead) or not self._missing(dead), timer
        )
        self._check_alive(dead)
        if self._start_error:
            raise ClusterError(f"{ranks_are(dead)} not to be replaced: {self._start_error}. {failure.RESTART}.")
        if not in_time:
            late = self._missing(dead)
            ranks.fallen |= late & ranks.arrivals.keys()  # given up
            raise WithLog(f"{ranks_are(late)} not there after {self._patience:g} s.")

    def _missing(self, dead: set[int]) -> set[int]:
        return dead - (self.ranks.arrivals.keys() & self.ranks.registered)

    def _introduce(self, dead: set[int]) -> Flow[None]:
        timer = yield from self.timer(self._patience)
        greeted = yield from self.greet(
            dead, ("shell", "control"), _HELLO_S, lambda _: self._died(dead) or self.is_over(timer)
        )
        self._check_alive(dead)
        if missing := dead - greeted.keys():
            raise ClusterError(f"{ranks_are(missing)} not answering: {failure.RESTART}")
        if self.ranks.engine:
            for rank in dead:
                self.ranks.introduce_arrival(rank, greeted[rank])

    def _died(self, dead: set[int]) -> bool:
        """Return whether a rank has died since ``dead`` were the dead ranks."""
        return self.ranks.dead != dead or bool(self.ranks.fallen)

    def _explained_by_death(self, dead: set[int]) -> Flow[bool]:
        """Return whether a rank has died; other ranks may notice that earlier, so query all until it is certain."""
        yield from self._query_alive(self.ranks.living, lambda missing: self._died(dead) or not missing)
        return self._died(dead)

    def _check_alive(self, dead: set[int]) -> None:
        if self._died(dead):
            raise ClusterError("a rank died while the ranks joined")

    # Restoring the kept state.

    def _restore_fresh(self) -> Flow[Respawned]:
        ranks = self.ranks
        fresh = sorted(ranks.bare)
        if not fresh:
            return Respawned((), 0)
        root = min(ranks.all - ranks.bare, default=None)
        lost = {} if root is None else (yield from self._copy_from(root, fresh))
        ranks.bare.clear()
        restored = tuple(name for name in self._names if name not in lost)
        return Respawned(tuple(fresh), root or 0, restored, lost)

    def _copy_from(self, root: int, fresh: list[int]) -> Flow[dict[str, str]]:
        """Copy definitions and kept variables of a survivor to the fresh ranks; return the lost names with reasons."""
        kept = (yield from self.query("replicated", [root], {}, _MOVE_S))[root]
        self._names = tuple(dict.fromkeys((*self._restore, *kept["names"], *kept["sets"])))
        definitions = kept.get("definitions")
        undefined = (yield from self._define(fresh, definitions)) if definitions else {}
        if not self._names:
            return undefined
        yield self.progress(f"{', '.join(self._names)}: from rank {root}")
        defined = [name for name in (definitions or {}).get("names", ()) if name not in undefined]
        content = {"names": self._names, "root": root, "fresh": fresh, "replicated": kept["names"], "defined": defined}
        answers = yield from self.query("restore", self.ranks.all, content, _MOVE_S)
        if definitions and undefined:  # a base class or a default value may have been among the variables
            undefined = yield from self._define(fresh, definitions, retry=True)
        return undefined | {name: reason for rank in fresh for name, reason in answers[rank]["lost"].items()}

    def _define(self, fresh: list[int], definitions: Mapping[str, Any], *, retry: bool = False) -> Flow[dict[str, str]]:
        """Run the imports and definitions of earlier cells on fresh ranks; return the failed names with reasons."""
        answers = yield from self.query("define", fresh, {**definitions, "retry": retry}, _MOVE_S)
        return {name: reason for rank in fresh for name, reason in answers[rank]["lost"].items()}


class Replace(Rejoin):
    """Replacement of dead ranks; with ``force`` also of living ones, which are killed."""

    def __init__(self, requested: ReplaceRequested, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(requested.request, ranks, patience, far=far, restore=requested.restore)
        self._requested = requested

    def run(self) -> Flow[Respawned]:
        """Replace the dead ranks, or the requested ones."""
        ranks = self.ranks
        silent = set() if self._requested.force else (yield from self.find_silent())
        chosen = set(ranks.dead if self._requested.ranks is None else self._requested.ranks)
        living = chosen - ranks.dead
        self._check(chosen, living)
        if not (chosen or ranks.bare or ranks.apart or self._requested.in_cell):
            return Respawned((), 0, silent=tuple(sorted(silent)))
        yield from self.end(living)
        if not self._requested.in_cell:
            yield from self.await_cell("`%hvd respawn`")
        return (yield from self.rejoin())

    def _check(self, chosen: set[int], living: set[int]) -> None:
        ranks = self.ranks
        if living and not self._requested.force:
            labels, it = spans(living), "it" if len(living) == 1 else "them"
            raise ClusterError(f"{ranks_are(living)} alive: `%hvd respawn {labels} --force` kills and replaces {it}")
        if left := ranks.dead - chosen:
            raise ClusterError(f"{ranks_are(left)} dead too: `%hvd respawn` alone replaces all that are dead")
        if chosen >= ranks.all:
            none_left = ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
            raise none_left if living else failure.all_dead(ranks.n)
        if (far := chosen - ranks.here) and not ranks.engine:
            raise ClusterError(f"{ranks_are(far)} on another host, where no spare can be: {failure.RESTART}")


@dataclass(frozen=True)
class ResizeOutcome:
    """The result of a resize. ``left`` has old numbers of ranks, everything else new ones."""

    before: int  # previous number of ranks
    n: int
    left: tuple[int, ...] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)  # of the survivors: old -> new
    respawned: Respawned = field(default_factory=lambda: Respawned((), 0))  # the fresh ranks and their variables


class Resize(Rejoin):
    """One change of size."""

    def __init__(self, requested: ResizeRequested, ranks: RankTable, patience: float, *, far: bool) -> None:
        super().__init__(requested.request, ranks, patience, far=far, restore=requested.restore)
        self._requested = requested
        self._leaving: set[int] = set()  # ranks that were asked to leave, by their old numbers
        self._stayed: int | None = None  # number of survivors, once they are renumbered

    def run(self) -> Flow[ResizeOutcome]:
        """Remove or add ranks until there are as many as requested."""
        ranks, n, before = self.ranks, self._requested.n, self.ranks.n
        silent = yield from self.find_silent()
        in_cell = self._requested.in_cell
        leaving = {rank for rank in ranks.all if rank >= n} if in_cell else ranks.leavers(n, self._requested.drop)
        self._check(leaving, silent)
        if not in_cell:
            yield from self.await_cell(f"`%hvd resize {n}`")
        yield from self._dismiss(leaving - ranks.dead)
        if ranks.dead:  # fail requests that wait for dead ranks: after the renumbering nothing would answer them
            yield Forget(frozenset(ranks.dead))
        numbers = ranks.resize(n, leaving)
        self._stayed = before - len(leaving)
        yield Send(Resized(n, numbers))
        yield Renumber(n, numbers)
        respawned = yield from self.rejoin()
        return ResizeOutcome(before, n, tuple(sorted(leaving)), numbers, respawned)

    def _check(self, leaving: set[int], silent: set[int]) -> None:
        ranks = self.ranks
        if far := ranks.all - ranks.here:
            raise failure.not_resizable(self._requested.n, far, ranks.engine)
        if ranks.all <= ranks.dead:
            raise failure.all_dead(ranks.n)
        if ranks.all - ranks.dead <= leaving:
            raise ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
        if stuck := silent - leaving:
            labels, it = spans(stuck), "it" if len(stuck) == 1 else "them"
            remedy = f"`%hvd stacks` shows where, `%hvd respawn {labels} --force` replaces {it}"
            raise ClusterError(f"{ranks_are(stuck)} not answering: {remedy}")

    def _dismiss(self, leaving: set[int]) -> Flow[None]:
        """Make ranks exit normally, and kill those that do not in time."""
        if not leaving:
            return
        self.ranks.leaving |= leaving
        self._leaving = leaving
        yield Query(self.ticket(), "leave", frozenset(leaving), {})
        if not (yield from self.await_exit(leaving)):
            yield from self.end(leaving)

    def undo(self) -> Iterator[Action]:
        """Remove the ranks that were being added, or those that were asked to leave."""
        ranks, stayed = self.ranks, self._stayed
        removed = self._leaving if stayed is None else {rank for rank in ranks.all if rank >= stayed}
        if self._requested.in_cell or not removed:  # within a cell, CellRejoin decides what follows
            return
        pids = frozenset(process.pid for rank in removed & ranks.living if (process := ranks.process(rank)) is not None)
        yield Forget(frozenset(removed | ranks.dead))
        n = ranks.n - len(removed)
        numbers = ranks.resize(n, removed)
        yield Kill(pids)
        yield Send(Resized(n, numbers))
        yield Renumber(n, numbers)
