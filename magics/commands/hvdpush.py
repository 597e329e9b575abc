"""%hvdpush: variables of the notebook, copied to the ranks."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.export.ran_cell import RanCell, literals
from hvd_kernel.magics.options import Options, names, resolve


@user_errors()
def push(context: Context, options: Options) -> None:
    """Copy the variables that the line names to the ranks; more than ``HVD_MAX_MOVE`` bytes only with ``--force``.

    Example: ``%hvdpush lr batch --ranks 0,2``.

    Raises
    ------
    UsageError
        None is named, one is not there, or the ranks are busy with a cell.
    ClusterError
        No ranks are running.
    """
    values = local_values(context.shell, tuple(names(options, "%hvdpush")))
    with context.manager.use():
        session = context.manager.current()
        ranks = resolve(options.ranks, session.n)
        session.push(values, ranks, force=options.force)
        some = None if len(ranks) == session.n else ranks
        context.manager.ran.append(RanCell(context.manager.cells.number, "", some, literals(values)))


def local_values(shell: InteractiveShell, names: tuple[str, ...]) -> dict[str, Any]:
    """Return variables of the notebook.

    Raises
    ------
    UsageError
        If one is not there.
    """
    if missing := [name for name in names if name not in shell.user_ns]:
        raise UsageError(f"there is no variable `{missing[0]}` in the notebook to push")
    return {name: shell.user_ns[name] for name in names}
