"""Rejoin: places without a living process get one, all ranks rendezvous, the fresh ones get what was kept.

What a respawn (respawn.py) and a resize (resize.py) have in common. Nothing of the survivors is touched but their
communication. Whoever dies meanwhile is replaced too: each try begins with who is dead then. A rank counts as dead
until it has met the others, so a rejoin that is cancelled can be asked for again; and as bare until it has what was
kept, which the next one then gives.

Terms.
  survivor   a rank that has lived all the time
  fresh      a rank that has been started in the place of a dead one, or in a new place; it gets the imports, functions
             and classes of earlier cells, and the variables that cells keep
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.events import (
    Ask,
    AwaitCell,
    CellEnded,
    CommunicatorReady,
    Event,
    Forget,
    Kill,
    Send,
)
from hvd_kernel.cluster.ranks.procedure import Flow, Procedure, WithLog, named
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.messages import ReplaceRanks, StartFailed, StopRank

_TRIES = 5
_GIFTS = 2  # tries to give what was kept: it may be the very thing of which a rank dies, in packing or in unpacking it
_LETHAL = "a rank died each time it was given; `%hvd respawn` tries again"
_HELLO_S = 0.05  # between two greetings
_MOVE_S = 600.0
_SIGN_S = 5.0  # for a rank to show that it lives, or to be seen dead
_END_S = 10.0  # for a process to end, and for the others' cell to end after a rank was killed in the middle of it


@dataclass(frozen=True)
class Respawned:
    """What became of the fresh ranks."""

    ranks: tuple[int, ...]  # the fresh ones
    source: int  # the rank that gave them variables
    restored: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)  # variables that did not come, and why
    silent: tuple[int, ...] = ()  # ranks that do not answer, where nothing was to be done


class Rejoin(Procedure):
    """One request to have all ranks whole, however many tries it takes.

    ``restore``: variables that fresh ranks get beside what was kept.
    """

    def __init__(self, request: int, ranks: RankTable, patience: float, *, far: bool, restore: tuple[str, ...]) -> None:
        super().__init__(request, ranks)
        self._patience = patience
        self._far = far
        self._restore = restore
        self._cell_ended = False
        self._why = ""  # nobody will come
        self._names: tuple[str, ...] = ()  # of what is given

    def hear(self, event: Event) -> None:
        """Take in what has happened."""
        super().hear(event)
        self._cell_ended |= isinstance(event, CellEnded)
        if isinstance(event, StartFailed):
            self._why = event.why

    def look(self) -> Flow[set[int]]:
        """Ask every rank for a sign of life, so that a death of this moment is noticed; return who keeps silent."""
        ranks = self.ranks
        missing = yield from self._signs(ranks.everybody - ranks.dead, lambda missing: missing <= ranks.dead)
        return missing - ranks.dead

    def await_cell(self, remedy: str) -> Flow[None]:
        """Return when no rank runs a cell; ``remedy``: what to say where one still does."""
        yield AwaitCell(self.ticket())
        if not (yield from self.within(lambda: self._cell_ended, _END_S)):
            raise ClusterError(f"the other ranks still run the cell: interrupt it, then {remedy}")

    def end(self, chosen: set[int]) -> Flow[None]:
        """Kill ranks, and wait for their end."""
        ranks = self.ranks
        if chosen - ranks.dead:
            if ranks.engine:
                yield from (Send(StopRank(rank, 0.0)) for rank in sorted(chosen - ranks.dead))
            else:
                yield Kill(frozenset(ranks.members[rank].pid for rank in chosen - ranks.dead))
        if not (yield from self.ended(chosen)):
            left = named(chosen - ranks.dead)
            raise ClusterError(f"{left} not dead {_END_S:g} s after SIGKILL: stuck in a driver?")

    def ended(self, chosen: set[int]) -> Flow[bool]:
        """Wait for the end of ranks; return whether it has come in time."""
        return (yield from self.within(lambda: chosen <= self.ranks.dead, _END_S))

    def rejoin(self) -> Flow[Respawned]:
        """Make all ranks whole, and give the fresh ones what was kept."""
        yield from self._until_whole()
        for _ in range(_GIFTS):
            try:
                return (yield from self._give())
            except ClusterError:
                if not (yield from self._explained_by_death(set())):
                    raise
            yield from self._until_whole()
        return Respawned(tuple(sorted(self.ranks.bare)), 0, lost=dict.fromkeys(self._names, _LETHAL))

    def _signs(self, living: set[int], enough: Callable[[set[int]], bool]) -> Flow[set[int]]:
        """Ask for signs of life, until it is enough of those that are missing; return whose have not come."""
        ticket = self.ticket()
        yield Ask(ticket, "hello", frozenset(living), {"channel": "control"}, urgent=True)
        signs = self.answers[ticket]
        yield from self.within(lambda: enough(living - signs.keys()), _SIGN_S)
        return living - signs.keys()

    # One try.

    def _until_whole(self) -> Flow[None]:
        ranks = self.ranks
        for _ in range(_TRIES):
            dead = set(ranks.dead)
            if dead == ranks.everybody:
                break
            try:
                yield from self._once(dead)
            except ClusterError:
                if not (yield from self._explained_by_death(dead)):
                    raise  # another try would end in the same way
            else:
                return
        if ranks.dead == ranks.everybody:
            raise failure.all_dead(ranks.n)
        raise WithLog(f"{named(ranks.dead)} dead again after {_TRIES} tries.")

    def _once(self, dead: set[int]) -> Flow[None]:
        yield from self._replace(dead)
        yield from self._introduce(dead)
        ranks = self.ranks
        answers = yield from self.rendezvous(dead, far=self._far, check=partial(self._check_alive, dead))
        ranks.admit({rank: content["device"] for rank, content in answers.items()}, dead)
        ranks.apart = False
        yield CommunicatorReady(ranks.generation)

    def _replace(self, dead: set[int]) -> Flow[None]:
        """Have processes registered as the engines of the dead."""
        ranks = self.ranks
        wanted = dead - (ranks.arrivals.keys() - ranks.fallen)  # those of an earlier try are still on their way
        ranks.make_way(wanted)
        if wanted:
            yield Forget(frozenset(wanted))
            if len(wanted) > ranks.spares:
                yield self.tell("no spare process is ready: starting one")
            yield Send(ReplaceRanks(sorted(wanted)))
        timer = yield from self.timer(self._patience)
        yield from self.until(lambda: dead <= ranks.arrivals.keys() or ranks.dead == ranks.everybody, timer)
        there = yield from self.until(lambda: bool(self._why) or self._died(dead) or not self._missing(dead), timer)
        self._check_alive(dead)
        if self._why:
            raise ClusterError(f"{named(dead)} not to be replaced: {self._why}. {failure.RESTART}.")
        if not there:
            late = self._missing(dead)
            ranks.fallen |= late & ranks.arrivals.keys()  # not to be counted on any more
            raise WithLog(f"{named(late)} not there after {self._patience:g} s.")

    def _missing(self, dead: set[int]) -> set[int]:
        return dead - (self.ranks.arrivals.keys() & self.ranks.registered)

    def _introduce(self, dead: set[int]) -> Flow[None]:
        timer = yield from self.timer(self._patience)
        greeted = yield from self.greet(
            dead, ("shell", "control"), _HELLO_S, lambda _: self._died(dead) or self.is_over(timer)
        )
        self._check_alive(dead)
        if missing := dead - greeted.keys():
            raise ClusterError(f"{named(missing)} not answering: {failure.RESTART}")
        if self.ranks.engine:
            for rank in dead:
                self.ranks.introduce_arrival(rank, greeted[rank])

    def _died(self, dead: set[int]) -> bool:
        """Tell whether somebody has died since these were the dead."""
        return self.ranks.dead != dead or bool(self.ranks.fallen)

    def _explained_by_death(self, dead: set[int]) -> Flow[bool]:
        """Tell whether somebody has died, which others may have noticed first: whoever lives shows it at once."""
        yield from self._signs(self.ranks.living, lambda missing: self._died(dead) or not missing)
        return self._died(dead)

    def _check_alive(self, dead: set[int]) -> None:
        if self._died(dead):
            raise ClusterError("a rank died while the ranks joined")

    # What the fresh ones get.

    def _give(self) -> Flow[Respawned]:
        ranks = self.ranks
        fresh = sorted(ranks.bare)
        if not fresh:
            return Respawned((), 0)
        root = min(ranks.everybody - ranks.bare, default=None)
        lost = {} if root is None else (yield from self._given(root, fresh))
        ranks.bare.clear()
        restored = tuple(name for name in self._names if name not in lost)
        return Respawned(tuple(fresh), root or 0, restored, lost)

    def _given(self, root: int, fresh: list[int]) -> Flow[dict[str, str]]:
        """Define what earlier cells did, and have a survivor give what was kept; return what is missing, and why."""
        found = (yield from self.ask("replicated", [root], {}, _MOVE_S))[root]
        self._names = tuple(dict.fromkeys((*self._restore, *found["names"], *found["sets"])))
        definitions = found.get("definitions")
        undefined = (yield from self._define(fresh, definitions)) if definitions else {}
        if not self._names:
            return undefined
        yield self.tell(f"{', '.join(self._names)}: from rank {root}")
        defined = [name for name in (definitions or {}).get("names", ()) if name not in undefined]
        content = {"names": self._names, "root": root, "fresh": fresh, "replicated": found["names"], "defined": defined}
        told = yield from self.ask("restore", self.ranks.everybody, content, _MOVE_S)
        if definitions and undefined:  # a base class or a default value may have been among the variables
            undefined = yield from self._define(fresh, definitions, retry=True)
        return undefined | {name: reason for rank in fresh for name, reason in told[rank]["lost"].items()}

    def _define(self, fresh: list[int], definitions: Mapping[str, Any], *, retry: bool = False) -> Flow[dict[str, str]]:
        """Run the imports and definitions of earlier cells on fresh ranks; return what could not be defined."""
        answers = yield from self.ask("define", fresh, {**definitions, "retry": retry}, _MOVE_S)
        return {name: reason for rank in fresh for name, reason in answers[rank]["lost"].items()}
