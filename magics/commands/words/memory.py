"""%hvd gc: garbage collection on every rank, and how much memory that gives back."""

from __future__ import annotations

from hvd_kernel.formatting.units import size_of
from hvd_kernel.magics.commands.words.life import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve

_ANSWER_S = 600.0


def collect(context: Context, options: Options) -> None:
    """Have the ranks let go of what nothing needs, and show what each has in memory before and after."""
    session = context.manager.current()
    answers = session.ask("gc", resolve(options.ranks, session.n), timeout=_ANSWER_S)
    rows: list[tuple[str, ...]] = [("rank", "before", "after")]
    rows += [(str(rank), size_of(said["before"]), size_of(said["after"])) for rank, (said, _) in answers.items()]
    context.writer().say(table(rows))
