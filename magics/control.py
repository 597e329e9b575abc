"""%hvd start|stop|restart|status|doctor, %hvdpush, %hvdpull, %hvdauto."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from hvd_kernel.config import ClusterSpec
from hvd_kernel.errors import UsageError
from hvd_kernel.magics.doctor import examine, report
from hvd_kernel.magics.holder import Holder, default_n
from hvd_kernel.magics.hvdrun import local_values, pulled
from hvd_kernel.magics.merge import named
from hvd_kernel.magics.options import Options, names, parse, resolve, wanted
from hvd_kernel.magics.plain import plain_errors
from hvd_kernel.magics.screen import Screen
from hvd_kernel.magics.transform import Transformer

VERBS = ("start", "stop", "restart", "status", "doctor")


@magics_class
class ControlMagics(Magics):
    """The line magics around the cluster."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell, holder: Holder, transformer: Transformer) -> None:
        super().__init__(shell)
        self.holder = holder
        self.transformer = transformer

    @no_var_expand
    @line_magic
    def hvd(self, line: str) -> None:
        """Care for the cluster: %hvd start|stop|restart|status|doctor. %hvd alone is %hvd status.

        ::

            %hvd start -np 4      start 4 ranks (also -H, --hostfile, --mpi-args); no effect if they live
            %hvd restart          the same ranks again, without their variables
            %hvd stop             end them
            %hvd status           one line per rank
            %hvd doctor           what is missing on this machine, and how to get it
        """
        with plain_errors():
            options = parse("%hvd", line)
            verb = options.words[0] if options.words else "status"
            if verb not in VERBS or len(options.words) > 1:
                raise UsageError(f"%hvd: {' '.join(options.words)!r} is not understood: write %hvd {'|'.join(VERBS)}")
            with self.holder.use():
                getattr(self, f"_{verb}")(options, Screen(self.shell))

    @no_var_expand
    @line_magic
    def hvdpush(self, line: str) -> None:
        """Copy variables from the notebook to the ranks: %hvdpush a b [--ranks 0,2-3]."""
        with plain_errors():
            options = parse("%hvdpush", line)
            values = local_values(self.shell, tuple(names(options, "%hvdpush")))
            with self.holder.use():
                session = self.holder.current()
                session.push(values, resolve(options.ranks, session.n))

    @no_var_expand
    @line_magic
    def hvdpull(self, line: str) -> None:
        """Bring variables of the ranks to the notebook: %hvdpull a b [--ranks 0,2-3]; a[0] is rank 0's."""
        with plain_errors():
            options = parse("%hvdpull", line)
            found = tuple(names(options, "%hvdpull"))
            with self.holder.use():
                session = self.holder.current()
                self.shell.user_ns.update(pulled(session, found, resolve(options.ranks, session.n)))

    @no_var_expand
    @line_magic
    def hvdauto(self, line: str) -> None:
        """Run every plain cell on the ranks: %hvdauto on|off. Cells that begin with a magic stay here."""
        with plain_errors():
            word = line.strip() or ("off" if self.transformer.auto else "on")
            if word not in ("on", "off"):
                raise UsageError(f"%hvdauto: {word!r} is not understood: write %hvdauto on or %hvdauto off")
            self.transformer.auto = word == "on"
            where = "on the ranks" if self.transformer.auto else "here"
            Screen(self.shell).say(f"plain cells run {where}\n")

    def _start(self, options: Options, screen: Screen) -> None:
        if self.holder.session is not None and self.holder.session.dead:
            self._restart(options, screen)
            return
        spec = wanted(options, self.holder.spec, default_n())
        self.holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status())
        self._ready(screen)

    def _restart(self, options: Options, screen: Screen) -> None:
        spec: ClusterSpec = wanted(options, self.holder.spec, default_n())
        self.holder.start(spec, screen.status())
        self._ready(screen)

    def _stop(self, _options: Options, screen: Screen) -> None:
        was_there = self.holder.session is not None
        self.holder.stop()
        screen.say("the ranks are stopped\n" if was_there else "no ranks were running\n")

    def _status(self, _options: Options, screen: Screen) -> None:
        session = self.holder.session
        if session is None:
            screen.say("no ranks are running\n")
            return
        rows: list[tuple[str, ...]] = [("rank", "state", "pid", "host", "device")]
        rows += [(str(r.rank), "alive" if r.alive else "dead", str(r.pid), r.host, r.device) for r in session.status()]
        screen.say(table(rows))

    def _doctor(self, _options: Options, screen: Screen) -> None:
        screen.say(report(examine()))

    def _ready(self, screen: Screen) -> None:
        session = self.holder.current()
        screen.say(f"{named(range(session.n))} ready\n")


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
