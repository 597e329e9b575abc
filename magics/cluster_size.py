"""Size of a living cluster: which ranks join and leave, and which variables would be lost with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics import messages
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.limits import Capacity

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.protocol.messages import MetricsSample

Report = Callable[[str], None]

_COMPARE_S = 600.0
_ALL = 1 << 62  # bytes of a variable that are compared

Rows = Mapping[str, Mapping[str, Any]]
"""A rank's variables, each with its type, shape, dtype, value and digest."""


def differs_in_size_alone(session: Session, spec: ClusterSpec) -> bool:
    """Return whether a resize leads to this cluster: on one host, without limits, with at least one living rank."""
    return replace(session.spec, n=spec.n) == spec and is_resizable(session) and len(session.dead) < session.n


def check_room(spec: ClusterSpec, running: int, *, force: bool) -> None:
    """Refuse more ranks than this machine has memory for; on hosts of a list and on engines nothing is checked.

    Parameters
    ----------
    spec
        The requested cluster.
    running
        Ranks that run already; they stay, or free their memory first.
    force
        Accept any number.

    Raises
    ------
    UsageError
        Naming the largest possible number.
    """
    if force or spec.hosts or spec.hostfile or spec.on or spec.n <= running:
        return
    capacity = Capacity.now()
    if shortage := capacity.shortage(spec.n, running):
        raise UsageError(f"{shortage}; ask for at most {capacity.largest(running)} (-np), or add --force")


def is_resizable(session: Session) -> bool:
    """Return whether ranks can join and leave: all are on one host, and without limits."""
    return not session.spec.limits and session.ranks.all <= session.ranks.here


def resize(
    session: Session,
    samples: dict[int, MetricsSample],
    n: int,
    report: Report,
    progress: Report,
    *,
    drop: Sequence[int] = (),
    restore: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Resize to n ranks; survivors keep their process and their variables.

    Parameters
    ----------
    samples
        The latest sample of each rank, by its number; renumbered in place.
    report
        Receives which values leave with their ranks, before they do, and the outcome.
    progress
        Receives the progress.
    drop
        Ranks that leave; by default the dead ones, then the newest.
    restore
        Variables that new ranks get in addition to the kept ones.
    force
        Allow the loss of variables that only leaving ranks have.

    Raises
    ------
    UsageError
        Variables would be lost, and ``force`` is false; they are named, and nothing has changed. Or as ``check_room``.
    ClusterError
        As ``Session.resize``.
    """
    check_room(replace(session.spec, n=n), session.n - len(session.dead), force=force)
    leaving, values = _leaving_with(session, n, drop, force=force)
    if values:
        report(messages.leaving_values(leaving, values))
    before = session.n
    try:
        done = session.resize(n, drop, restore=restore, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(messages.resize_interrupted(before, n, session.n)) from None
    tracking.copy_run(session.ask, session.n, done.respawned.ranks)
    earlier = dict(samples)
    samples.clear()
    samples.update({now: earlier[rank] for rank, now in done.numbers.items() if rank in earlier})
    report(messages.resize_outcome(done).rstrip())


def _leaving_with(session: Session, n: int, drop: Collection[int], *, force: bool) -> tuple[set[int], list[str]]:
    """Return the ranks that leave, and the variables whose values no surviving rank has.

    Raises
    ------
    UsageError
        Without ``force``: no surviving rank defines one of them at all.
    """
    leaving = session.ranks.leavers(n, drop) - session.ranks.dead
    staying = session.ranks.all - session.ranks.dead - leaving
    if not leaving or not staying:
        return leaving, []
    question = {"names": [], "compare": _ALL}
    answers = session.ask("variables", sorted(leaving | staying), question, timeout=_COMPARE_S)
    rows: dict[int, Rows] = {rank: content["rows"] for rank, (content, _) in answers.items()}
    only, different = lost({rank: rows[rank] for rank in leaving}, [rows[rank] for rank in staying])
    if only and not force:
        names, it = messages.listed(only), "it" if len(only) == 1 else "them"
        ranks = spans(rank for rank in leaving if any(name in rows[rank] for name in only))
        first = f"`%hvdpull {only[0]} --ranks {ranks}` brings {'it' if len(only) == 1 else 'the first'} here"
        raise UsageError(
            f"{rank_list(leaving)} would leave, and no other rank has {names}: {first}, --force drops {it}, "
            "--drop chooses other ranks"
        )
    return leaving, sorted({*only, *different})


def lost(leaving: Mapping[int, Rows], staying: Sequence[Rows]) -> tuple[list[str], list[str]]:
    """Return the names that only leaving ranks define, and those whose values no staying rank has. Pure."""
    names = sorted({name for rows in leaving.values() for name in rows})
    only = [name for name in names if not any(name in rows for rows in staying)]
    kept = {name: [rows[name] for rows in staying if name in rows] for name in names}
    different = {name for rows in leaving.values() for name in rows if rows[name] not in kept[name]}
    return only, sorted(different - {*only})
