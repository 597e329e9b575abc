"""Messages about the notebook's cluster: what is lost, refused or started, with the remedy. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned

NO_RANKS = "no ranks are running: %hvd start -np 4 starts them, or any %%hvdrun cell"
BUSY = "the ranks are busy with another cell: wait for it or interrupt it"

_LOST = "its variables are missing: run the cells that made them again, or hvd.broadcast_object them"
_LOST_BY_SEVERAL = "their variables are missing: run the cells that made them again, or hvd.broadcast_object them"

_LISTED = 5
"""Names of variables in a sentence."""


def listed(names: Sequence[str]) -> str:
    """Return names of variables for a sentence, the first five of them."""
    return ", ".join(f"`{name}`" for name in names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def crowded(n: int, cores: int) -> str:
    """Return the warning before a start of many more ranks than cores."""
    counts = f"{n} ranks on {plural(cores, 'core')}: {n // cores} share each core"
    remedy = f"If fewer are enough, interrupt the start and use, for example, -np {2 * cores}."
    return f"{counts}, and the start may take minutes. {remedy}"


def change_of(old: ClusterSpec, new: ClusterSpec) -> str:
    """Return in a few words how a requested cluster differs from the running one."""
    if old.n != new.n:
        return f"{plural(new.n, 'rank')} instead of {old.n}"
    if old.limits != new.limits:
        return "other limits"
    if old.mps != new.mps:
        return "no private MPS daemon"
    return "other GPUs" if old.gpus != new.gpus else "other hosts or MPI options"


def restart(change: str, kept: Sequence[str]) -> str:
    """Return the notice that all ranks start again because of a change, and which variables the new ranks get."""
    variables = f" with {', '.join(kept)} from the ranks before" if kept else ""
    return f"{change}: the ranks start again{variables}."


def restart_would_lose(change: str, names: Sequence[str]) -> str:
    """Return the refusal of a change that would lose these variables."""
    it = "it" if len(names) == 1 else "them"
    return (
        f"{change}: the ranks would start again, and {listed(names)} there would be lost. Add --force to lose {it}, "
        f"or call hvd_kernel.keep({names[0]!r}) in a cell on the ranks"
    )


def cluster_in_use(job: str, n: int) -> str:
    """Return the refusal of another cluster of n ranks while jobs need the running one; ``job`` names the job."""
    return f"another cluster cannot start: {job}; %hvd restart -np {n} --force ends it"


def detached_cluster_exists(name: str) -> str:
    """Return the notice that this folder has a detached cluster, although new ranks are being started."""
    remedy = f"`%hvd stop`, then `%hvd attach {name}`"
    return f"starting new ranks, although {name} was kept and has its variables: {remedy}"


def start_interrupted(n: int) -> str:
    """Return the message of an interrupted start."""
    them = "it" if n == 1 else "them"
    return f"the start of {plural(n, 'rank')} was interrupted and undone; %%hvdrun starts {them} again"


def all_replaced(ranks: Collection[int]) -> str:
    """Return the fate of a cell's ranks that the third interrupt ended, when no rank survived."""
    were = "was" if len(ranks) == 1 else "were"
    return f"{rank_list(ranks)} {were} ended, and new ranks have started: all variables are lost"


def resize_interrupted(before: int, requested: int, n: int) -> str:
    """Return the message of a resize from ``before`` to ``requested`` ranks that was interrupted at ``n``. Pure."""
    change = f"the resize from {before} to {plural(requested, 'rank')} was interrupted"
    if n == before:
        return f"{change} and undone: {rank_list(range(n))} {'keep their' if n > 1 else 'keeps its'} variables"
    return f"{change} after ranks had left or joined: there {'are' if n > 1 else 'is'} {rank_list(range(n))} now"


def leaving_values(leaving: Collection[int], names: Sequence[str]) -> str:
    """Return the notice before ranks leave whose values no other rank has. Pure."""
    pull = f"`%hvdpull {names[0]} --ranks {spans(leaving)}` before a resize copies `{names[0]}` here"
    whose = "leaves with its own values" if len(leaving) == 1 else "leave with their own values"
    return f"{rank_list(leaving)} {whose} of {listed(names)}; {pull}"


def resize_outcome(done: ResizeOutcome) -> str:
    """Return the outcome of a resize, as lines."""
    if not done.left and not done.respawned.ranks:
        return f"there are {done.n} ranks already\n" if done.n > 1 else "there is 1 rank already\n"
    stay = f"{rank_list(done.numbers.values())} stay{'s' * (len(done.numbers) == 1)}"
    moved = any(before != now for before, now in done.numbers.items())
    were = f" (before {spans(done.numbers)})" if moved else ""
    left = f", {rank_list(done.left)} {'has' if len(done.left) == 1 else 'have'} left" if done.left else ""
    return f"{stay}{were}{left}\n{new_ranks_variables(done.respawned)}"


def new_ranks_variables(done: Respawned) -> str:
    """Return which variables new ranks have, as lines; "" without new ranks."""
    if not done.ranks:
        return ""
    verb, have = ("is", "it has") if len(done.ranks) == 1 else ("are", "they have")
    ranks = f"{rank_list(done.ranks)} {verb} fresh"
    if not done.restored:
        return f"{ranks}: {_LOST if len(done.ranks) == 1 else _LOST_BY_SEVERAL}\n{not_restored(done.lost)}"
    restored = f"{', '.join(done.restored)} from rank {done.source}"
    return f"{ranks}: {have} {restored}; other variables are missing\n{not_restored(done.lost)}"


def not_restored(lost: Mapping[str, str]) -> str:
    """Return why variables could not be restored on new ranks, as lines."""
    return "".join(f"`{name}` could not be restored: {reason}\n" for name, reason in lost.items())


def respawn_interrupted(dead: Sequence[int]) -> str:
    """Return the message of an interrupted respawn. Pure."""
    if not dead:
        return "the respawn was interrupted: all ranks live, and meet again before the next cell"
    verb, them = ("is", "it") if len(dead) == 1 else ("are", "them")
    return f"the respawn was interrupted: {rank_list(dead)} {verb} still dead, and `%hvd respawn` replaces {them}"


def respawn_outcome(done: Respawned) -> str:
    """Return the outcome of a respawn, as lines."""
    return new_ranks_variables(done) or f"no rank is dead{_silent_text(done.silent)}\n"


def _silent_text(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    does, it = ("does", "it") if len(ranks) == 1 else ("do", "them")
    remedy = f"`%hvd stacks` shows where, `%hvd respawn {spans(ranks)} --force` replaces {it}"
    return f", but {rank_list(ranks)} {does} not answer: {remedy}"
