"""%hvd start|stop|restart|status: the cluster's life."""

from __future__ import annotations

from hvd_kernel.config import ClusterSpec
from hvd_kernel.magics.desk import Desk
from hvd_kernel.magics.holder import default_n
from hvd_kernel.magics.merge import named
from hvd_kernel.magics.options import Options, wanted


def start(desk: Desk, options: Options) -> None:
    """Start ranks; those that live are kept if they are what is asked for."""
    desk.holder.respawn = options.respawn or desk.holder.respawn
    if desk.holder.session is not None and desk.holder.session.dead:
        restart(desk, options)
        return
    screen = desk.screen()
    spec = wanted(options, desk.holder.spec, default_n())
    desk.holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status())
    _ready(desk)


def restart(desk: Desk, options: Options) -> None:
    """Start the same ranks again."""
    desk.holder.respawn = options.respawn or desk.holder.respawn
    spec: ClusterSpec = wanted(options, desk.holder.spec, default_n())
    desk.holder.start(spec, desk.screen().status())
    _ready(desk)


def stop(desk: Desk, _options: Options) -> None:
    """End the ranks."""
    was_there = desk.holder.session is not None
    desk.holder.stop()
    desk.screen().say("the ranks are stopped\n" if was_there else "no ranks were running\n")


def status(desk: Desk, _options: Options) -> None:
    """Show one line per rank."""
    session = desk.holder.session
    if session is None:
        desk.screen().say("no ranks are running\n")
        return
    rows: list[tuple[str, ...]] = [("rank", "state", "pid", "host", "device")]
    rows += [(str(r.rank), "alive" if r.alive else "dead", str(r.pid), r.host, r.device) for r in session.status()]
    desk.screen().say(table(rows))


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _ready(desk: Desk) -> None:
    desk.screen().say(f"{named(range(desk.holder.current().n))} ready\n")
