"""%hvd: its sub-commands, each with free ranks unless it works at any time."""

from __future__ import annotations

from contextlib import nullcontext

from hvd_kernel.magics.commands.subcommands import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options


@user_errors()
def hvd(context: Context, options: Options) -> None:
    """Run the sub-command that the line names.

    Example: ``%hvd start -np 4``.

    Raises
    ------
    UsageError
        There is no such sub-command, or the ranks are busy with a cell; else as the sub-command.
    """
    named = table.find(options)
    with nullcontext() if named.anytime else context.manager.use(force=options.force):
        named.act(context, options)
