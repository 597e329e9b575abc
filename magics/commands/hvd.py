"""%hvd and its words, %hvdpush, %hvdpull, %hvdauto."""

from __future__ import annotations

from contextlib import nullcontext

from IPython.core.magic import line_magic, magics_class, no_var_expand

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.commands import index
from hvd_kernel.magics.commands.hvdrun import local_values, pulled
from hvd_kernel.magics.context import Desk, DeskMagics
from hvd_kernel.magics.display.user_error import plain_errors
from hvd_kernel.magics.options import names, parse, resolve
from hvd_kernel.magics.shell.rank_names import RankNames
from hvd_kernel.magics.shell.transform import Transformer


@magics_class
class ControlMagics(DeskMagics):
    """The line magics around the cluster."""

    def __init__(self, desk: Desk, transformer: Transformer, names: RankNames) -> None:
        super().__init__(desk)
        self.names = names
        self.transformer = transformer

    @no_var_expand
    @line_magic
    def hvd(self, line: str) -> None:  # noqa: D102 - its words are its help, below
        with plain_errors():
            options = parse("%hvd", line)
            verb = index.find(options)
            with nullcontext() if verb.anytime else self.desk.holder.use(force=options.force):
                verb.act(self.desk, options)

    hvd.__doc__ = index.usage()

    @no_var_expand
    @line_magic
    def hvdpush(self, line: str) -> None:
        """Copy variables from the notebook to the ranks: %hvdpush a b [--ranks 0,2-3] [--force: however large]."""
        with plain_errors():
            options = parse("%hvdpush", line)
            values = local_values(self.shell, tuple(names(options, "%hvdpush")))
            with self.desk.holder.use():
                session = self.desk.holder.current()
                session.push(values, resolve(options.ranks, session.n), force=options.force)

    @no_var_expand
    @line_magic
    def hvdpull(self, line: str) -> None:
        """Bring variables of the ranks to the notebook: %hvdpull a b [--ranks 0,2-3] [--force].

        a[0] is rank 0's, list(a) and np.asarray(a) are the values in rank order; with --ranks 2 a is rank 2's value.
        """
        with plain_errors():
            options = parse("%hvdpull", line)
            found = tuple(names(options, "%hvdpull"))
            with self.desk.holder.use():
                session = self.desk.holder.current()
                ranks = resolve(options.ranks, session.n)
                self.shell.user_ns.update(pulled(session, found, options, ranks))

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
            self.desk.screen().say(f"plain cells run {where}\n")
