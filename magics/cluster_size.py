"""Size of a living cluster: who comes and leaves, what would be lost with those that leave, what is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import named, spans
from hvd_kernel.processes.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.ranks.rejoin import Respawned
    from hvd_kernel.cluster.ranks.resize import ResizeOutcome
    from hvd_kernel.protocol.messages import MetricsSample

Say = Callable[[str], None]

_LISTED = 5
"""Names of variables in a sentence."""

_COMPARE_S = 600.0
_ALL = 1 << 62  # bytes of a variable that are compared
_NOTHING = "its variables are missing: run the cells that made them again, or hvd.broadcast_object them"
_NOTHING_OF_SEVERAL = "their variables are missing: run the cells that made them again, or hvd.broadcast_object them"

Rows = Mapping[str, Mapping[str, Any]]
"""A rank's variables: what is known of each."""


def differs_in_size_alone(session: Session, spec: ClusterSpec) -> bool:
    """Tell whether the ranks that live can become this cluster: on one host, without limits, one of them alive."""
    return replace(session.spec, n=spec.n) == spec and is_resizable(session) and len(session.dead) < session.n


def is_resizable(session: Session) -> bool:
    """Tell whether ranks can come and leave: all are on one host, and without limits."""
    return not session.spec.limits and session.ranks.everybody <= session.ranks.here


def resize(
    session: Session,
    samples: dict[int, MetricsSample],
    n: int,
    say: Say,
    progress: Say,
    *,
    drop: Sequence[int] = (),
    restore: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Have n ranks; who stays keeps process and variables.

    Parameters
    ----------
    samples
        The latest of each rank, by its number; changed.
    say
        Told what has become of the ranks.
    progress
        Told how far it is.
    drop
        Ranks that leave; else the dead leave, then the youngest.
    restore
        Variables that fresh ranks get beside what was kept.
    force
        Variables that only ranks that leave have may be lost.

    Raises
    ------
    UsageError
        They would be, and ``force`` is not there; they are named, and nothing has happened.
    ClusterError
        As ``Session.resize``.
    """
    own = _leaving_with(session, n, drop, force=force)
    done = session.resize(n, drop, restore=restore, progress=progress)
    tracking.tell_fresh(session.ask, session.n, done.given.ranks)
    before = dict(samples)
    samples.clear()
    samples.update({now: before[rank] for rank, now in done.numbers.items() if rank in before})
    say(told(done, own).rstrip())


def _leaving_with(session: Session, n: int, drop: Collection[int], *, force: bool) -> list[str]:
    """Return the variables whose values on ranks that leave are not those of any other rank.

    Raises
    ------
    UsageError
        Without ``force``: no other rank has them at all.
    """
    leaving = session.ranks.leavers(n, drop) - session.ranks.dead
    staying = session.ranks.everybody - session.ranks.dead - leaving
    if not leaving or not staying:
        return []
    asked = {"names": [], "compare": _ALL}
    answers = session.ask("variables", sorted(leaving | staying), asked, timeout=_COMPARE_S)
    rows: dict[int, Rows] = {rank: content["rows"] for rank, (content, _) in answers.items()}
    only, own = lost({rank: rows[rank] for rank in leaving}, [rows[rank] for rank in staying])
    if only and not force:
        names, it = listed(only), "it" if len(only) == 1 else "them"
        ranks = spans(rank for rank in leaving if any(name in rows[rank] for name in only))
        first = f"`%hvdpull {only[0]} --ranks {ranks}` brings {'it' if len(only) == 1 else 'the first'} here"
        raise UsageError(
            f"{named(leaving)} would leave, and no other rank has {names}: {first}, --force drops {it}, "
            "--drop chooses other ranks"
        )
    return sorted({*only, *own})


def lost(leaving: Mapping[int, Rows], staying: Sequence[Rows]) -> tuple[list[str], list[str]]:
    """Return the names that only ranks that leave have, and those of which they have values of their own. Pure."""
    names = sorted({name for rows in leaving.values() for name in rows})
    only = [name for name in names if not any(name in rows for rows in staying)]
    there = {name: [rows[name] for rows in staying if name in rows] for name in names}
    of_its_own = {name for rows in leaving.values() for name in rows if rows[name] not in there[name]}
    return only, sorted(of_its_own - {*only})


def told(done: ResizeOutcome, own: Sequence[str]) -> str:
    """Return what became of it, as lines; ``own``: variables of which those that left had values of their own."""
    if not done.left and not done.given.ranks:
        return f"there are {done.n} ranks already\n" if done.n > 1 else "there is 1 rank already\n"
    stay = f"{named(done.numbers.values())} stay{'s' * (len(done.numbers) == 1)}"
    moved = any(before != now for before, now in done.numbers.items())
    were = f" ({_were(done.numbers)})" if moved else ""
    left = f", {named(done.left)} {'has' if len(done.left) == 1 else 'have'} left" if done.left else ""
    values = f", and with {'it' if len(done.left) == 1 else 'them'} values of {listed(own)}" if own else ""
    return f"{stay}{were}{left}{values}\n{fresh(done.given)}"


def _were(numbers: Mapping[int, int]) -> str:
    before = [rank for rank, _ in sorted(numbers.items(), key=lambda each: each[1])]
    if before == sorted(before):
        return f"before {spans(before)}"
    return f"before {', '.join(map(str, before))}"


def fresh(done: Respawned) -> str:
    """Return what fresh ranks have, as lines; "" where there are none."""
    if not done.ranks:
        return ""
    one = len(done.ranks) == 1
    who = f"{named(done.ranks)} {'is' if one else 'are'} fresh"
    it = "it has" if one else "they have"
    if not done.restored:
        return f"{who}: {_NOTHING if one else _NOTHING_OF_SEVERAL}\n{missing(done.lost)}"
    those = f"{', '.join(done.restored)} from rank {done.source}"
    return f"{who}: {it} {those}; other variables are missing\n{missing(done.lost)}"


def missing(lost: Mapping[str, str]) -> str:
    """Return why variables did not come to fresh ranks, as lines."""
    return "".join(f"`{name}` could not be restored: {why}\n" for name, why in lost.items())


def listed(names: Sequence[str]) -> str:
    """Return names of variables for a sentence, as many as it bears."""
    return ", ".join(f"`{name}`" for name in names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
