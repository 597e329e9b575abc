"""%hvd clean: ends and removes what clusters of kernels that are gone have left on this machine, and nothing else.

Detached clusters are nobody's leftovers: they are listed, and ended by their names alone. Nor are warm ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import detached, leftovers
from hvd_kernel.processes.detached import DetachedCluster
from hvd_kernel.processes.leftovers import Marked
from hvd_kernel.processes.spares import warm
from hvd_kernel.processes.spares.warm import WarmCluster

COMMAND_CHARS = 100
OF_THE_DEAD = "of a cluster whose kernel is gone"


def clean(context: Context, options: Options) -> None:
    """End our own orphans and remove their folders, or only list them (--dry-run).

    Example: ``%hvd clean --dry-run``.

    Raises
    ------
    ClusterError
        With ``--kept``: no detached cluster has that name.
    """
    if options.kept and not options.dry_run:
        context.writer().say(_end_detached(options.kept))
        return
    if options.pool and not options.dry_run:
        context.writer().say(_end_warm())
        return
    sweep = looked_at if options.dry_run else swept
    session = context.manager.session
    strays = leftovers.strays(session.supervisor) if session else []
    others = running_on(strays) + detached_on(detached.clusters()) + warm_on(warm.clusters())
    context.writer().say((sweep() or "nothing is left behind\n") + others)


def looked_at() -> str:
    """Say what would be ended and removed."""
    return told(leftovers.orphans(), leftovers.folders(), "would end", "would remove")


def swept() -> str:
    """End and remove, and say what."""
    said, refused = "", ""
    while found := leftovers.orphans():  # an end may make more of them
        ended = {each.pid: leftovers.end(each) for each in found}
        said += told([each for each in found if ended[each.pid]], [], "ended", "")
        if not all(ended.values()):
            refused = told([each for each in found if not ended[each.pid]], [], "could not end", "")
            break
    places = leftovers.folders()
    removed = {folder: leftovers.remove(folder) for folder in places}
    said += told([], [folder for folder in places if removed[folder]], "", "removed")
    return said + refused + told([], [folder for folder in places if not removed[folder]], "", "could not remove")


def told(processes: Sequence[Marked], folders: Sequence[Path], end: str, remove: str) -> str:
    """Write what was found and what became of it."""
    listed = _list(f"{end} {_count(processes, 'process', 'es')} {OF_THE_DEAD}", map(_row, processes))
    return listed + _list(f"{remove} {_count(folders, 'folder', 's')} {OF_THE_DEAD}", map(str, folders))


def running_on(strays: Sequence[Marked]) -> str:
    """Write what cells have left running beside their ranks; "" when there is nothing."""
    title = f"{_count(strays, 'process', 'es')} that cells have detached; `%hvd stop` ends them with the ranks"
    return _list(title, (f"{_row(each)}{each.rank and f'  (rank {each.rank})'}" for each in strays))


def detached_on(clusters: Sequence[DetachedCluster]) -> str:
    """Write which clusters are detached; "" when there is none."""
    title = f"{_count(clusters, 'detached cluster', 's')}; `%hvd attach NAME` goes on, `%hvd clean --kept NAME` ends it"
    return _list(title, (each.sentence for each in clusters))


def warm_on(clusters: Sequence[WarmCluster]) -> str:
    """Write which ranks wait for the next notebook; "" when none do."""
    title = f"{_count(clusters, 'set', 's')} of warm ranks (HVD_POOL); `%hvd clean --pool` ends {_them(clusters)}"
    return _list(title, (each.sentence for each in clusters))


def _them(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "them"


def _end_warm() -> str:
    """End all that wait; say so."""
    from hvd_kernel.cluster.pool.warm_ranks import end  # noqa: PLC0415 - as below

    found = warm.clusters()
    for each in found:
        end(each)
    return "".join(f"ended {each.sentence}\n" for each in found) or "there are no warm ranks\n"


def _end_detached(name: str) -> str:
    """End the detached clusters of a name, or all, that no kernel has; say so."""
    from hvd_kernel.cluster.attach import end  # noqa: PLC0415 - ipyparallel

    named = [each for each in detached.clusters() if name in (each.note.name, "all")]
    ended = [each for each in named if name != "all" or not each.note.kernel]
    if not ended:
        raise ClusterError(f"there is no detached cluster {name!r} to end\n{detached_on(detached.clusters())}".rstrip())
    for each in ended:
        end(each)
    return f"ended {', '.join(each.note.name for each in ended)}\n"


def _list(title: str, rows: Iterable[str]) -> str:
    lines = [f"  {row}\n" for row in rows]
    return f"{title}:\n{''.join(lines)}" if lines else ""


def _row(process: Marked) -> str:
    return f"{process.pid}  {process.command[:COMMAND_CHARS]}"


def _count(things: Sequence[object], name: str, plural: str) -> str:
    return f"{len(things)} {name}{plural * (len(things) != 1)}"
