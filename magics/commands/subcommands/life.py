"""%hvd start|stop|restart|status: the cluster's life."""

from __future__ import annotations

from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.cluster_request import default, wanted
from hvd_kernel.magics.commands.subcommands import keep
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display import other_ranks
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec


def start(context: Context, options: Options) -> None:
    """Start ranks; those that live are kept if they are what is asked for.

    Example: ``%hvd start -np 4 --gpus 0,1``.

    Raises
    ------
    UsageError
        Variables of living ranks would be lost; ``--force`` loses them.
    ConfigError
        A setting, a host or a GPU cannot be used.
    ClusterError
        The ranks have not started.
    """
    context.manager.respawn = options.respawn or context.manager.respawn
    if context.manager.session is not None and context.manager.session.dead:
        restart(context, options)
        return
    writer = context.writer()
    spec = wanted(options, context.manager.spec or default(options.gpus))
    keep.check(context, options, spec)
    context.manager.ensure(spec, lambda text: writer.say(f"{text}\n"), writer.status(), force=options.force)
    _ready(context)
    keep.keep(context, options)


def restart(context: Context, options: Options) -> None:
    """Start the same ranks again; their variables are lost.

    Example: ``%hvd restart --force``.

    Raises
    ------
    ConfigError
        As ``start``.
    ClusterError
        As ``start``.
    """
    context.manager.respawn = options.respawn or context.manager.respawn
    spec: ClusterSpec = wanted(options, context.manager.spec or default(options.gpus))
    keep.check(context, options, spec)
    writer = context.writer()
    context.manager.start(spec, writer.status(), lambda text: writer.say(f"{text}\n"), force=options.force)
    _ready(context)
    keep.keep(context, options)


def stop(context: Context, _options: Options) -> None:
    """End the ranks; where there are none, say so.

    Example: ``%hvd stop``.
    """
    was_there = context.manager.session is not None
    context.manager.stop()
    context.writer().say("the ranks are stopped\n" if was_there else "no ranks were running\n")


def status(context: Context, _options: Options) -> None:
    """Show one line per rank: alive or dead and why, process, host and device.

    Example: ``%hvd status``.
    """
    session = context.manager.session
    if session is None:
        waiting = [each for each in detached.clusters() if each.note.place == context.manager.place]
        listed = "".join(f"kept: {each.sentence}: `%hvd attach {each.note.name}`\n" for each in waiting)
        context.writer().say(f"no ranks are running\n{listed}")
        return
    writer, ranks = context.writer(), session.status()
    why = "" if all(r.alive for r in ranks) else "why"
    rows: list[tuple[str, ...]] = [("rank", "state", "pid", "host", "device", why)]
    rows += [(str(r.rank), "alive" if r.alive else "dead", str(r.pid), r.host, r.device, r.why) for r in ranks]
    writer.say(table(rows))
    if session.detached_name:
        writer.say(f"kept as {session.detached_name}: they go on when this kernel ends, `%hvd stop` ends them\n")
    if writer.looked_at:  # whether a spare is warm by now differs from run to run
        writer.say(f"{session.spares or 'no'} spare process{'es' * (session.spares != 1)} ready\n")
        if told := other_ranks.beside(session):
            writer.say(f"{told}\n")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _ready(context: Context) -> None:
    context.writer().say(f"{rank_list(range(context.manager.current().n))} ready\n")
