"""%hvd clean: ends processes and removes folders that clusters of ended kernels have left on this machine.

Detached clusters and warm ranks are no leftovers: they are listed, and ended only with ``--kept`` and ``--pool``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import detached, leftovers, warm
from hvd_kernel.processes.detached import DetachedCluster
from hvd_kernel.processes.leftovers import Marked
from hvd_kernel.processes.warm import WarmCluster

COMMAND_CHARS = 100
OF_ENDED_KERNELS = "of a cluster whose kernel has ended"


def clean(context: Context, options: Options) -> None:
    """End orphaned processes of ours and remove their folders, or list them (--dry-run).

    Example: ``%hvd clean --dry-run``.

    Raises
    ------
    ClusterError
        With ``--kept``: no detached cluster has that name.
    """
    if options.kept and not options.dry_run:
        context.writer().write(_end_detached(options.kept))
        return
    if options.pool and not options.dry_run:
        context.writer().write(_end_warm())
        return
    sweep = preview if options.dry_run else remove_leftovers
    session = context.manager.session
    strays = leftovers.strays(session.supervisor) if session else []
    others = running_on(strays) + detached_on(detached.clusters()) + warm_on(warm.clusters())
    context.writer().write((sweep() or "nothing is left behind\n") + others)


def preview() -> str:
    """Return a report of the processes and folders that would be ended and removed."""
    return report(leftovers.orphans(), leftovers.folders(), "would end", "would remove")


def remove_leftovers() -> str:
    """End the processes and remove the folders, and return a report."""
    done, refused = "", ""
    while orphans := leftovers.orphans():  # the end of a process may orphan others
        ended = {orphan.pid: leftovers.end(orphan) for orphan in orphans}
        done += report([orphan for orphan in orphans if ended[orphan.pid]], [], "ended", "")
        if not all(ended.values()):
            refused = report([orphan for orphan in orphans if not ended[orphan.pid]], [], "could not end", "")
            break
    folders = leftovers.folders()
    removed = {folder: leftovers.remove(folder) for folder in folders}
    done += report([], [folder for folder in folders if removed[folder]], "", "removed")
    return done + refused + report([], [folder for folder in folders if not removed[folder]], "", "could not remove")


def report(processes: Sequence[Marked], folders: Sequence[Path], end: str, remove: str) -> str:
    """Return the lines about processes and folders, with what was done with them."""
    listed = _list(f"{end} {_count(processes, 'process', 'es')} {OF_ENDED_KERNELS}", map(_row, processes))
    return listed + _list(f"{remove} {_count(folders, 'folder', 's')} {OF_ENDED_KERNELS}", map(str, folders))


def running_on(strays: Sequence[Marked]) -> str:
    """Return the lines about processes that cells have detached; "" if there are none."""
    title = f"{_count(strays, 'process', 'es')} that cells have detached; `%hvd stop` ends them with the ranks"
    return _list(title, (f"{_row(stray)}{stray.rank and f'  (rank {stray.rank})'}" for stray in strays))


def detached_on(clusters: Sequence[DetachedCluster]) -> str:
    """Return the lines about detached clusters; "" without one."""
    title = f"{_count(clusters, 'detached cluster', 's')}; `%hvd attach NAME` goes on, `%hvd clean --kept NAME` ends it"
    return _list(title, (cluster.sentence for cluster in clusters))


def warm_on(clusters: Sequence[WarmCluster]) -> str:
    """Return the lines about warm ranks; "" without any."""
    title = f"{_count(clusters, 'set', 's')} of warm ranks (HVD_POOL); `%hvd clean --pool` ends {_them(clusters)}"
    return _list(title, (cluster.sentence for cluster in clusters))


def _them(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "them"


def _end_warm() -> str:
    """End all warm ranks, and return a report."""
    from hvd_kernel.cluster.warm_ranks import end  # noqa: PLC0415 - as below

    clusters = warm.clusters()
    for cluster in clusters:
        end(cluster)
    return "".join(f"ended {cluster.sentence}\n" for cluster in clusters) or "there are no warm ranks\n"


def _end_detached(name: str) -> str:
    """End the detached cluster of a name, or all without a kernel, and return a report."""
    from hvd_kernel.cluster.attach import end  # noqa: PLC0415 - ipyparallel

    chosen = [cluster for cluster in detached.clusters() if name in (cluster.note.name, "all")]
    ended = [cluster for cluster in chosen if name != "all" or not cluster.note.kernel]
    if not ended:
        raise ClusterError(f"there is no detached cluster {name!r} to end\n{detached_on(detached.clusters())}".rstrip())
    for cluster in ended:
        end(cluster)
    return f"ended {', '.join(cluster.note.name for cluster in ended)}\n"


def _list(title: str, rows: Iterable[str]) -> str:
    lines = [f"  {row}\n" for row in rows]
    return f"{title}:\n{''.join(lines)}" if lines else ""


def _row(process: Marked) -> str:
    return f"{process.pid}  {process.command[:COMMAND_CHARS]}"


def _count(things: Sequence[object], name: str, plural: str) -> str:
    return f"{len(things)} {name}{plural * (len(things) != 1)}"
