"""Registration of the magics of the table in an IPython shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.magic import no_var_expand

from hvd_kernel.magics.commands.index import MAGICS, Magic
from hvd_kernel.magics.commands.subcommands import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options, filled


def register(context: Context) -> None:
    """Register every magic, as a function that IPython calls with a line, and with a cell."""
    manager = context.shell.magics_manager
    for magic in MAGICS.values():
        kind = "cell" if magic.is_cell else "line"
        manager.register_function(_function(magic, context), kind, magic.name.strip("%"))


def unregister(context: Context) -> None:
    """Take them back; IPython has no call for that, but tables."""
    for magics in context.shell.magics_manager.magics.values():
        for magic in MAGICS.values():
            magics.pop(magic.name.strip("%"), None)


def _function(magic: Magic, context: Context) -> Callable[..., Any]:
    def run(line: str, *cell: str) -> Any:
        with user_errors():
            options = magic.parse(line if magic.text else filled(line, context.shell.user_ns))
            if options.help:
                context.writer().say(_help(magic, options))
                return None
        return magic.act(context, options, *cell)

    run.__name__ = run.__qualname__ = magic.name.strip("%")
    run.__doc__ = magic.doc()
    vars(run)["__wrapped__"] = magic.act  # %name? names its file
    no_var_expand(run)
    return run


def _help(magic: Magic, options: Options) -> str:
    """Return what ``--help`` shows: of a sub-command of %hvd, its own."""
    if magic.name == "%hvd" and options.arguments:
        return table.find(options).help()
    return magic.doc()
