"""Dead ranks replaced: a spare registers in the place of each, all ranks meet again, the fresh ones get what was kept.

Nothing of the survivors is touched but their communication. Whoever dies meanwhile is replaced too: each try begins
with who is dead then. A rank counts as dead until it has met the others, so an interrupted respawn can be called again;
and as bare until it has what was kept, which the next respawn then gives.

Words.
  survivor   a rank that has lived all the time
  fresh      a rank that has been started in place of a dead one
  bare       a fresh rank that has not been given what was kept
"""
# ruff: noqa: SLF001 - a part of Session, in a file of its own

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.launcher import is_far
from hvd_kernel.cluster.requests.gather import Gather, Handshake
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.messages import ReplaceRanks
from hvd_kernel.processes.lifetime import kill

if TYPE_CHECKING:
    from hvd_kernel.cluster.session import Session

_TRIES = 5
_GIFTS = 2  # tries to give what was kept: it may be the very thing of which a rank dies, in packing or in unpacking it
_LETHAL = "a rank died each time it was given; `%hvd respawn` tries again"
_HANDSHAKE_S = 0.05  # between two tries
_MEET_S = 60.0
_MOVE_S = 600.0
_SIGN_S = 5.0  # for a rank to show that it lives, or to be seen dead
_END_S = 10.0  # for the others' cell to end after a rank was killed in the middle of it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Respawned:
    """What became of it."""

    ranks: tuple[int, ...]  # the fresh ones
    source: int  # the rank that gave them variables
    restored: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)  # variables that did not come, and why
    silent: tuple[int, ...] = ()  # ranks that do not answer, where nothing was to be done


class _SignsOfLife(Gather):
    """Answers that wake whoever waits for a change in the session."""

    def __init__(self, ranks: Iterable[int], notify: Callable[[], None]) -> None:
        super().__init__(ranks, "hello")
        self._notify = notify

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Keep the answer."""
        super().on_reply(rank, content, buffers)
        self._notify()
        return True


class Respawn:
    """One call of ``Session.respawn``."""

    def __init__(self, session: Session, restore: Sequence[str], say: Say) -> None:
        self._session = session
        self._restore = tuple(restore)
        self._say = say
        self._names: tuple[str, ...] = ()  # of what is given

    def run(self, asked: Sequence[int] | None, *, force: bool) -> Respawned:
        """Replace the dead, or those that are asked for."""
        session = self._session
        silent = () if force else self._look()
        chosen = set(asked) if asked is not None else set(session.dead)
        living = chosen - set(session.dead)
        self._check(chosen, living, force=force)
        if not chosen and not session._bare:
            return Respawned((), 0, silent=silent)
        self._kill(living)
        self._await_cell()
        self._until_whole()
        for _ in range(_GIFTS):
            try:
                return self._give()
            except ClusterError:
                if not self._explained_by_death(set()):
                    raise
            self._until_whole()
        return Respawned(tuple(sorted(session._bare)), 0, lost=dict.fromkeys(self._names, _LETHAL))

    def _look(self) -> tuple[int, ...]:
        """Ask every rank for a sign of life, so that a death of this moment is noticed; return who keeps silent."""
        session = self._session
        living = set(range(session.n)) - session._dead
        signs = self._signs(living)
        with session._changed:
            session._changed.wait_for(lambda: living <= {*signs.so_far()} | session._dead, _SIGN_S)
        return tuple(sorted(living - {*signs.so_far()} - session._dead))

    def _signs(self, ranks: set[int]) -> _SignsOfLife:
        signs = _SignsOfLife(ranks, self._session._notify)
        hello = {"verb": "hello", "channel": "control"}
        self._session._wire.request(sorted(ranks), "hvd_request", hello, signs, urgent=True)
        return signs

    def _check(self, chosen: set[int], living: set[int], *, force: bool) -> None:
        session = self._session
        if living and not force:
            remedy = f"`%hvd respawn {_list(living)} --force` kills and replaces {_it(living)}"
            raise ClusterError(f"{_ranks(living)} alive: {remedy}")
        if left := set(session.dead) - chosen:
            raise ClusterError(f"{_ranks(left)} dead too: `%hvd respawn` alone replaces all that are dead")
        if chosen >= set(range(session.n)):
            raise (
                ClusterError(f"no rank would be left to continue from: {failure.RESTART}")
                if living
                else failure.all_dead(session.n)
            )
        if far := chosen - session._here:
            raise ClusterError(f"{_ranks(far)} on another host, where no spare can be: {failure.RESTART}")

    def _kill(self, ranks: set[int]) -> None:
        session = self._session
        for rank in ranks:
            kill(session._ranks[rank].pid, signal.SIGKILL)
        with session._changed:
            if not session._changed.wait_for(lambda: ranks <= session._dead, _END_S):
                raise ClusterError(
                    f"{_ranks(ranks - session._dead)} not dead {_END_S:g} s after SIGKILL: stuck in a driver?"
                )

    def _await_cell(self) -> None:
        latest = self._session._latest
        if latest is not None and not latest.wait(_END_S):
            raise ClusterError("the other ranks still run the cell: interrupt it, then `%hvd respawn`")

    # One try.

    def _until_whole(self) -> None:
        session = self._session
        for _ in range(_TRIES):
            dead = set(session._dead)
            if len(dead) == session.n:
                break
            try:
                self._once(dead)
            except ClusterError:
                if not self._explained_by_death(dead):
                    raise  # another try would end in the same way
            else:
                return
        if len(session._dead) == session.n:
            raise failure.all_dead(session.n)
        raise failure.start_failed(f"{_ranks(session._dead)} dead again after {_TRIES} tries.", session._launched.log)

    def _once(self, dead: set[int]) -> None:
        session = self._session
        self._replace(dead)
        self._shake_hands(dead)
        for rank, device in self._meet(dead).items():
            if rank in dead:
                session._arrivals[rank] = replace(session._arrivals[rank], device=device)
        session._admit(dead)

    def _replace(self, dead: set[int]) -> None:
        """Have processes registered as the engines of the dead."""
        session = self._session
        wanted = dead - (set(session._arrivals) - session._fallen)  # those of an earlier try are still on their way
        session._make_way(wanted)
        if len(wanted) > session.spares:
            self._say("no spare process is ready: starting one")
        if wanted:
            session._launched.send(ReplaceRanks(sorted(wanted)))
        patience = session.spec.start_timeout_s
        with session._changed:
            session._changed.wait_for(lambda: dead <= {*session._arrivals} or len(session._dead) == session.n, patience)
            there = session._changed.wait_for(lambda: self._died(dead) or not self._missing(dead), patience)
        self._check_alive(dead)
        if not there:
            session._fallen |= self._missing(dead)  # not to be counted on any more
            reason = f"{_ranks(self._missing(dead))} not there after {patience:g} s."
            raise failure.start_failed(reason, session._launched.log)

    def _missing(self, dead: set[int]) -> set[int]:
        return dead - (set(self._session._arrivals) & set(self._session._wire.uuids))

    def _shake_hands(self, dead: set[int]) -> None:
        session = self._session
        hands = Handshake(dead)
        deadline = time.monotonic() + session.spec.start_timeout_s
        while True:
            hands.greet(session._wire.request)
            if hands.wait(_HANDSHAKE_S):
                return
            self._check_alive(dead)
            if time.monotonic() > deadline:
                raise ClusterError(f"{_ranks(hands.missing())} not answering: {failure.RESTART}")

    def _meet(self, dead: set[int]) -> dict[int, str]:
        """Let all ranks meet; return the devices."""
        session = self._session
        everybody = {rank: status for rank, status in session._ranks.items() if rank not in dead} | session._arrivals
        [(place, _)] = self._ask([0], "invite", {"far": is_far(session.spec)}, urgent=True).values()
        meeting = {
            "size": session.n,
            "secret": secrets.token_hex(32),
            "ranks": {rank: (status.pid, status.host) for rank, status in everybody.items()},
            "fresh": sorted(dead),
        }
        answers = self._ask(range(session.n), "meet", meeting | dict(place))
        return {rank: content["device"] for rank, (content, _) in answers.items()}

    def _ask(self, ranks: Sequence[int], verb: str, content: dict[str, Any], *, urgent: bool = False) -> dict[int, Any]:
        """Ask ranks, those too that do not count as living yet."""
        gather = Gather(ranks, verb)
        self._session._wire.request(list(ranks), "hvd_request", {"verb": verb} | content, gather, urgent=urgent)
        self._check_alive(set(self._session._arrivals))  # who died before the request was sent is not waited for
        return gather.wait(_MEET_S)

    def _died(self, dead: set[int]) -> bool:
        """Tell whether somebody has died since these were the dead."""
        return self._session._dead != dead or bool(self._session._fallen)

    def _explained_by_death(self, dead: set[int]) -> bool:
        """Tell whether somebody has died, which others may have noticed first: whoever lives shows it at once."""
        session = self._session
        living = (set(range(session.n)) - session._dead) | (set(session._arrivals) - session._fallen)
        signs = self._signs(living)
        with session._changed:
            session._changed.wait_for(lambda: self._died(dead) or living <= {*signs.so_far()}, _SIGN_S)
            return self._died(dead)

    def _check_alive(self, dead: set[int]) -> None:
        if self._died(dead):
            raise ClusterError("a rank died while ranks were replaced")

    # What the fresh ones get.

    def _give(self) -> Respawned:
        session = self._session
        fresh = sorted(session._bare)
        root = min(set(range(session.n)) - session._bare, default=None)
        lost = {} if root is None else self._given(root, fresh)
        session._bare.clear()
        restored = tuple(name for name in self._names if name not in lost)
        return Respawned(tuple(fresh), root or 0, restored, lost)

    def _given(self, root: int, fresh: list[int]) -> dict[str, str]:
        """Have a survivor give what was kept; return what did not arrive, and why."""
        kept = self._told("kept", [root])[root]
        self._names = tuple(dict.fromkeys((*self._restore, *kept["names"], *kept["sets"])))
        if not self._names:
            return {}
        self._say(f"{', '.join(self._names)}: from rank {root}")
        content = {"names": self._names, "root": root, "fresh": fresh, "kept": kept["names"]}
        told = self._told("restore", range(self._session.n), content)
        return {name: why for rank in fresh for name, why in told[rank]["lost"].items()}

    def _told(self, verb: str, ranks: Sequence[int], content: dict[str, Any] | None = None) -> dict[int, Any]:
        """Ask ranks all of which have to answer."""
        answers = self._session.ask(verb, ranks, content, timeout=_MOVE_S)
        if gone := set(ranks) - set(answers):
            raise ClusterError(f"{_ranks(gone)} dead")
        return {rank: answer for rank, (answer, _) in answers.items()}


def _list(ranks: set[int]) -> str:
    return ",".join(map(str, sorted(ranks)))


def _it(ranks: set[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _ranks(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_list(ranks)} {'is' if len(ranks) == 1 else 'are'}"
