"""Hints in the notebook's own errors: a NameError for a name that exists on the ranks, a mistyped name of a magic.

And %debug where they are: an error of a rank is looked at on that rank, not in the code that raises it again here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError

from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.display.user_error import USER_ERRORS
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.options import nearest
from hvd_kernel.magics.shell.rank_names import RankNames

_HINTED = (NameError, UsageError)
_NO_MAGIC = re.compile(r"(?:Cell magic|Line magic function) `(%{1,2})(\w+)` not found")
_OURS = "hvd"

NO_FRAME = (
    "%debug: the last error is a message of hvd_kernel's, not an exception of your code: there is no frame to show"
)


def install(shell: Any, names: RankNames) -> None:
    """Add the hints to what IPython shows, unless somebody has a handler of their own there."""

    def shown(shell: Any, kind: Any, error: BaseException, where: TracebackType, tb_offset: int | None = None) -> Any:
        if isinstance(error, UsageError):
            _name_nearest(shell, error)
        elif hint := "" if own_traceback(error) else names.hint(error):
            error.add_note(hint)
        shell.showtraceback((kind, error, where), tb_offset=tb_offset)

    if not shell.custom_exceptions:
        shell.set_custom_exc(_HINTED, shown)
    vars(shell)["debugger"] = _debugger(shell)


def uninstall(shell: Any) -> None:
    """Take the hints back, unless somebody has set a handler since."""
    if shell.custom_exceptions == _HINTED:
        shell.set_custom_exc((), None)
    vars(shell).pop("debugger", None)


def _debugger(shell: Any) -> Callable[..., None]:
    """Return what %debug and %pdb call."""
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
    """Whether an error brings its own traceback: what a rank raised has its hint already."""
    return hasattr(error, "_render_traceback_")


def _name_nearest(shell: Any, error: UsageError) -> None:
    """Name the magic of ours that is most like one that is not there, unless IPython has a suggestion."""
    missing = _NO_MAGIC.fullmatch(str(error).rstrip("."))
    if missing:
        percent, name = missing.groups()
        table = shell.magics_manager.magics["cell" if len(percent) > 1 else "line"]
        near = nearest(f"{percent}{name}", [f"{percent}{each}" for each in table if each.startswith(_OURS)])
        error.args = (f"{missing[0]}{near or '.'}",)
