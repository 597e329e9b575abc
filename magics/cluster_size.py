"""Size of a living cluster: who comes and leaves, what would be lost with those that leave, what is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.resources.capacity import Capacity

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


def check_room(spec: ClusterSpec, running: int, *, force: bool) -> None:
    """Refuse more ranks than this machine has memory for; hosts, allocations and engines decide for themselves.

    Parameters
    ----------
    spec
        The cluster that is to be.
    running
        Ranks that run already, and stay or make room.
    force
        Accept any number.

    Raises
    ------
    UsageError
        Naming how many there is room for.
    """
    if force or spec.hosts or spec.hostfile or spec.on or spec.n <= running:
        return
    capacity = Capacity.now()
    if shortage := capacity.shortage(spec.n, running):
        raise UsageError(f"{shortage}; ask for at most {capacity.largest(running)} (-np), or add --force")


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
        Told which values leave, before they do, and what has become of the ranks.
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
        They would be, and ``force`` is not there; they are named, and nothing has happened. Or as ``check_room``.
    ClusterError
        As ``Session.resize``.
    """
    check_room(replace(session.spec, n=n), session.n - len(session.dead), force=force)
    leaving, values = _leaving_with(session, n, drop, force=force)
    if values:
        say(leaving_values(leaving, values))
    before = session.n
    try:
        done = session.resize(n, drop, restore=restore, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(interrupted(before, n, session.n)) from None
    tracking.copy_run(session.ask, session.n, done.given.ranks)
    earlier = dict(samples)
    samples.clear()
    samples.update({now: earlier[rank] for rank, now in done.numbers.items() if rank in earlier})
    say(outcome_text(done).rstrip())


def _leaving_with(session: Session, n: int, drop: Collection[int], *, force: bool) -> tuple[set[int], list[str]]:
    """Return the ranks that leave, and the variables whose values there are not those of any other rank.

    Raises
    ------
    UsageError
        Without ``force``: no other rank has them at all.
    """
    leaving = session.ranks.leavers(n, drop) - session.ranks.dead
    staying = session.ranks.everybody - session.ranks.dead - leaving
    if not leaving or not staying:
        return leaving, []
    asked = {"names": [], "compare": _ALL}
    answers = session.ask("variables", sorted(leaving | staying), asked, timeout=_COMPARE_S)
    rows: dict[int, Rows] = {rank: content["rows"] for rank, (content, _) in answers.items()}
    only, own = lost({rank: rows[rank] for rank in leaving}, [rows[rank] for rank in staying])
    if only and not force:
        names, it = listed(only), "it" if len(only) == 1 else "them"
        ranks = spans(rank for rank in leaving if any(name in rows[rank] for name in only))
        first = f"`%hvdpull {only[0]} --ranks {ranks}` brings {'it' if len(only) == 1 else 'the first'} here"
        raise UsageError(
            f"{rank_list(leaving)} would leave, and no other rank has {names}: {first}, --force drops {it}, "
            "--drop chooses other ranks"
        )
    return leaving, sorted({*only, *own})


def interrupted(before: int, requested: int, n: int) -> str:
    """Return what became of a resize from ``before`` to ``requested`` ranks that left ``n``. Pure."""
    change = f"the resize from {before} to {plural(requested, 'rank')} was interrupted"
    if n == before:
        return f"{change} and undone: {rank_list(range(n))} {'keep their' if n > 1 else 'keeps its'} variables"
    return f"{change} after ranks had left or joined: there {'are' if n > 1 else 'is'} {rank_list(range(n))} now"


def leaving_values(leaving: Collection[int], names: Sequence[str]) -> str:
    """Return the sentence before ranks leave that have values of their own. Pure."""
    pull = f"`%hvdpull {names[0]} --ranks {spans(leaving)}` before a resize copies `{names[0]}` here"
    whose = "leaves with its own values" if len(leaving) == 1 else "leave with their own values"
    return f"{rank_list(leaving)} {whose} of {listed(names)}; {pull}"


def lost(leaving: Mapping[int, Rows], staying: Sequence[Rows]) -> tuple[list[str], list[str]]:
    """Return the names that only ranks that leave have, and those of which they have values of their own. Pure."""
    names = sorted({name for rows in leaving.values() for name in rows})
    only = [name for name in names if not any(name in rows for rows in staying)]
    there = {name: [rows[name] for rows in staying if name in rows] for name in names}
    of_its_own = {name for rows in leaving.values() for name in rows if rows[name] not in there[name]}
    return only, sorted(of_its_own - {*only})


def outcome_text(done: ResizeOutcome) -> str:
    """Return the outcome of a resize, as lines."""
    if not done.left and not done.given.ranks:
        return f"there are {done.n} ranks already\n" if done.n > 1 else "there is 1 rank already\n"
    stay = f"{rank_list(done.numbers.values())} stay{'s' * (len(done.numbers) == 1)}"
    moved = any(before != now for before, now in done.numbers.items())
    were = f" ({_were(done.numbers)})" if moved else ""
    left = f", {rank_list(done.left)} {'has' if len(done.left) == 1 else 'have'} left" if done.left else ""
    return f"{stay}{were}{left}\n{fresh(done.given)}"


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
    who = f"{rank_list(done.ranks)} {'is' if one else 'are'} fresh"
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
