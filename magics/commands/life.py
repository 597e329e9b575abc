"""%hvd start|stop|restart|status: the cluster's life."""

from __future__ import annotations

from hvd_kernel.formatting.rank_labels import named
from hvd_kernel.magics.cluster_manager import default_n
from hvd_kernel.magics.commands import keep
from hvd_kernel.magics.context import Desk
from hvd_kernel.magics.options import Options, wanted
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec


def start(desk: Desk, options: Options) -> None:
    """Start ranks; those that live are kept if they are what is asked for."""
    desk.holder.respawn = options.respawn or desk.holder.respawn
    if desk.holder.session is not None and desk.holder.session.dead:
        restart(desk, options)
        return
    screen = desk.screen()
    spec = wanted(options, desk.holder.spec, default_n(options.gpus))
    keep.check(desk, options)
    desk.holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status(), force=options.force)
    _ready(desk)
    keep.keep(desk, options)


def restart(desk: Desk, options: Options) -> None:
    """Start the same ranks again."""
    desk.holder.respawn = options.respawn or desk.holder.respawn
    spec: ClusterSpec = wanted(options, desk.holder.spec, default_n(options.gpus))
    keep.check(desk, options)
    desk.holder.start(spec, desk.screen().status())
    _ready(desk)
    keep.keep(desk, options)


def stop(desk: Desk, _options: Options) -> None:
    """End the ranks."""
    was_there = desk.holder.session is not None
    desk.holder.stop()
    desk.screen().say("the ranks are stopped\n" if was_there else "no ranks were running\n")


def status(desk: Desk, _options: Options) -> None:
    """Show one line per rank."""
    session = desk.holder.session
    if session is None:
        waiting = [each for each in detached.clusters() if each.note.place == desk.holder.place]
        listed = "".join(f"kept: {each.sentence}: `%hvd attach {each.note.name}`\n" for each in waiting)
        desk.screen().say(f"no ranks are running\n{listed}")
        return
    screen, ranks = desk.screen(), session.status()
    why = "" if all(r.alive for r in ranks) else "why"
    rows: list[tuple[str, ...]] = [("rank", "state", "pid", "host", "device", why)]
    rows += [(str(r.rank), "alive" if r.alive else "dead", str(r.pid), r.host, r.device, r.why) for r in ranks]
    screen.say(table(rows))
    if session.kept:
        screen.say(f"kept as {session.kept}: they go on when this kernel ends, `%hvd stop` ends them\n")
    if screen.looked_at:  # whether a spare is warm by now differs from run to run
        screen.say(f"{session.spares or 'no'} spare process{'es' * (session.spares != 1)} ready\n")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _ready(desk: Desk) -> None:
    desk.screen().say(f"{named(range(desk.holder.current().n))} ready\n")
