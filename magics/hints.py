"""A NameError in a local cell, for a name that lives on the ranks, says so."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from hvd_kernel.magics.names import RankNames


def install(shell: Any, names: RankNames) -> None:
    """Add the hint to IPython's traceback of a NameError, unless somebody has a handler of their own there."""

    def shown(shell: Any, kind: Any, error: BaseException, where: TracebackType, tb_offset: int | None = None) -> Any:
        hint = "" if own_traceback(error) else names.hint(error)
        if hint:
            error.add_note(hint)
        shell.showtraceback((kind, error, where), tb_offset=tb_offset)

    if not shell.custom_exceptions:
        shell.set_custom_exc((NameError,), shown)


def uninstall(shell: Any) -> None:
    """Take the hint back, unless somebody has set a handler since."""
    if shell.custom_exceptions == (NameError,):
        shell.set_custom_exc((), None)


def own_traceback(error: BaseException) -> bool:
    """Whether an error brings its own traceback: what a rank raised has its hint already."""
    return hasattr(error, "_render_traceback_")
