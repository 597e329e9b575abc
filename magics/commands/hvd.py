"""%hvd: the words behind it, each with free ranks unless it works at any time."""

from __future__ import annotations

from contextlib import nullcontext

from hvd_kernel.magics.commands.words import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options


@user_errors()
def hvd(context: Context, options: Options) -> None:
    """Do what the line's first word says."""
    word = table.find(options)
    with nullcontext() if word.anytime else context.manager.use(force=options.force):
        word.act(context, options)
