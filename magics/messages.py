"""Messages about the notebook's cluster: what is lost, refused or started, with the remedy. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hvd_kernel.formatting.plural import plural
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.processes.cluster_spec import ClusterSpec

NO_RANKS = "no ranks are running: %hvd start -np 4 starts them, or any %%hvdrun cell"
BUSY = "the ranks are busy with another cell: wait for it or interrupt it"

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
