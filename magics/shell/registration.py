"""Registration in an IPython shell: magics, completion of their lines, hints in the notebook's own errors.

Hints explain a NameError whose name exists on the ranks, and a mistyped magic. %debug opens the debugger on the rank
that failed, not in the code that raises the error again here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from hvd_kernel.magics.commands import table
from hvd_kernel.magics.commands.index import MAGICS, Magic
from hvd_kernel.magics.commands.table import SUBCOMMANDS
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.display.user_errors import USER_ERRORS, user_errors
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.jobs import Jobs
from hvd_kernel.magics.options import Options, filled, nearest
from hvd_kernel.magics.shell.completers import Names
from hvd_kernel.magics.shell.rank_names import RankNames


def register(context: Context) -> None:
    """Register every magic, as a function that IPython calls with a line, a cell magic also with the cell."""
    manager = context.shell.magics_manager
    for magic in MAGICS.values():
        kind = "cell" if magic.is_cell else "line"
        manager.register_function(_function(magic, context), kind, magic.name.strip("%"))


def unregister(context: Context) -> None:
    """Remove the magics from IPython's tables; it has no function for that."""
    for magics in context.shell.magics_manager.magics.values():
        for magic in MAGICS.values():
            magics.pop(magic.name.strip("%"), None)


def _function(magic: Magic, context: Context) -> Callable[..., Any]:
    def run(line: str, *cell: str) -> Any:
        with user_errors():
            options = magic.parse(line if magic.text else filled(line, context.shell.user_ns))
            if options.help:
                context.writer().write(_help(magic, options))
                return None
        return magic.act(context, options, *cell)

    run.__name__ = run.__qualname__ = magic.name.strip("%")
    run.__doc__ = magic.doc()
    vars(run)["__wrapped__"] = magic.act  # %name? shows its file
    no_var_expand(run)
    return run


def _help(magic: Magic, options: Options) -> str:
    """Return the text of ``--help``, of a sub-command of %hvd its own."""
    if magic.name == "%hvd" and options.arguments:
        return table.find(options).help()
    return magic.doc()


def install_completion(shell: Any, names: RankNames, jobs: Jobs) -> None:
    """Register with IPython's completer, for lines that start with one of our magics."""

    def local(symbol: str) -> list[str]:
        return [name for name in shell.user_ns if name.startswith(symbol) and not name.startswith("_")]

    sources = Names(
        ranks=lambda symbol: list(names.matching(symbol)[1]),
        notebook=local,
        jobs=lambda: [job.name for job in jobs],
        running=lambda: [job.name for job in jobs if not job.ended.is_set()],
    )
    for magic in MAGICS:
        shell.set_hook("complete_command", partial(_complete, sources), str_key=magic)


def uninstall_completion(shell: Any) -> None:
    """Remove the completers from IPython's table; it has no function for that."""
    for magic in MAGICS:
        shell.strdispatchers["complete_command"].strs.pop(magic, None)


def _complete(names: Names, _completer: object, event: SimpleNamespace) -> list[str]:
    magic = MAGICS[event.command]
    options = [spelling for flag in magic.flags for spelling in flag.spellings]
    if event.symbol.startswith("-"):
        return options
    head = event.line[: len(event.line) - len(event.symbol)].split()
    subcommand = SUBCOMMANDS.get(head[1]) if event.command == "%hvd" and len(head) > 1 else None
    matches = (magic if subcommand is None else subcommand).completes(names, event.symbol)
    return matches or (options if not event.symbol else [])


_HINTED = (NameError, UsageError)
_NO_MAGIC = re.compile(r"(?:Cell magic|Line magic function) `(%{1,2})(\w+)` not found")
_OURS = "hvd"

NO_FRAME = (
    "%debug: the last error is a message of hvd_kernel's, not an exception of your code: there is no frame to show"
)


def install_hints(shell: Any, names: RankNames) -> None:
    """Add the hints to the errors that IPython shows, unless the user has set a handler."""

    def shown(shell: Any, kind: Any, error: BaseException, where: TracebackType, tb_offset: int | None = None) -> Any:
        if isinstance(error, UsageError):
            _name_nearest(shell, error)
        elif hint := "" if own_traceback(error) else names.hint(error):
            error.add_note(hint)
        shell.showtraceback((kind, error, where), tb_offset=tb_offset)

    if not shell.custom_exceptions:
        shell.set_custom_exc(_HINTED, shown)
    vars(shell)["debugger"] = _debugger(shell)


def uninstall_hints(shell: Any) -> None:
    """Remove the hints, unless the user has set a handler since."""
    if shell.custom_exceptions == _HINTED:
        shell.set_custom_exc((), None)
    vars(shell).pop("debugger", None)


def _debugger(shell: Any) -> Callable[..., None]:
    """Return the function that %debug and %pdb call."""
    plain = shell.debugger

    def debugger(force: bool = False) -> None:
        error = getattr(sys, "last_value", None)
        if isinstance(error, RankError) and (force or shell.call_pdb):
            shell.run_line_magic("hvddebug", "")
        elif isinstance(error, (*USER_ERRORS, Interrupted)) and own_traceback(error):
            sys.stderr.write(f"{NO_FRAME}\n" * (not shell.call_pdb))
        else:
            plain(force=force)

    return debugger


def own_traceback(error: BaseException) -> bool:
    """Return whether an error has its own traceback; a rank's error has its hint already."""
    return hasattr(error, "_render_traceback_")


def _name_nearest(shell: Any, error: UsageError) -> None:
    """Suggest our most similar magic for one that does not exist, unless IPython has a suggestion."""
    missing = _NO_MAGIC.fullmatch(str(error).rstrip("."))
    if missing:
        percent, name = missing.groups()
        table = shell.magics_manager.magics["cell" if len(percent) > 1 else "line"]
        near = nearest(f"{percent}{name}", [f"{percent}{magic}" for magic in table if magic.startswith(_OURS)])
        error.args = (f"{missing[0]}{near or '.'}",)
