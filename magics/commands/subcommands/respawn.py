"""%hvd respawn: dead ranks are replaced, the others keep their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_kernel import tracking
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics.cluster_size import fresh
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.options import Options, resolve

if TYPE_CHECKING:
    from hvd_kernel.cluster.ranks.rejoin import Respawned


def act(context: Context, options: Options) -> None:
    """Replace the ranks that the line names, else all that are dead.

    Example: ``%hvd respawn 2 --restore model,opt``.

    Raises
    ------
    UsageError
        There is no such rank.
    ClusterError
        No ranks are running, all are dead, or a fresh one does not come.
    """
    n = context.manager.current().n
    named = options.arguments[1] if len(options.arguments) > 1 else options.ranks
    ranks = None if named == "all" and not options.force else resolve(named, n)
    respawn(context, ranks, force=options.force, restore=options.restore)


def respawn(
    context: Context, ranks: Sequence[int] | None = None, *, force: bool = False, restore: Sequence[str] = ()
) -> None:
    """Replace these ranks, or all that are dead, and say what the fresh ones have."""
    session = context.manager.current()
    try:
        done = session.respawn(ranks, force=force, restore=restore, progress=context.writer().status())
    except KeyboardInterrupt:
        raise Interrupted(interrupted(session.dead)) from None
    tracking.copy_run(session.ask, session.n, done.ranks)
    for rank in done.ranks:  # it counts its steps from zero again
        context.manager.samples.pop(rank, None)
    context.writer().say(told(done))


def interrupted(dead: Sequence[int]) -> str:
    """Return what an interrupted respawn leaves. Pure."""
    if not dead:
        return "the respawn was interrupted: all ranks live, and meet again before the next cell"
    verb, them = ("is", "it") if len(dead) == 1 else ("are", "them")
    return f"the respawn was interrupted: {rank_list(dead)} {verb} still dead, and `%hvd respawn` replaces {them}"


def if_wanted(context: Context) -> None:
    """Replace dead ranks before a cell, where the user has asked for that to happen by itself."""
    session = context.manager.session
    if session is not None and session.dead and context.manager.replaces_dead():
        respawn(context)


def told(done: Respawned) -> str:
    """Return what became of it, as lines."""
    return fresh(done) or f"no rank is dead{_silent(done.silent)}\n"


def _silent(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    does, it = ("does", "it") if len(ranks) == 1 else ("do", "them")
    remedy = f"`%hvd stacks` shows where, `%hvd respawn {spans(ranks)} --force` replaces {it}"
    return f", but {rank_list(ranks)} {does} not answer: {remedy}"
