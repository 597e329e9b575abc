"""The error policy ``--no-raise-error``: what fails on the ranks is shown in full, and the cell itself succeeds.

For notebooks that show an error on purpose and run where an error output means failure, wanted or not: papermill does
not know the tag raises-exception. A wrong option, ranks that are not there and the interrupt key still fail the cell.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hvd_kernel.errors import HvdTimeout
from hvd_kernel.magics.display.rank_failures import RankError

if TYPE_CHECKING:
    from hvd_kernel.magics.display.writer import Writer

OF_THE_RANKS = (RankError, HvdTimeout)
"""What a cell's ranks can fail with: an exception or a death, or more time than --timeout gives them."""


def show(error: BaseException, writer: Writer) -> None:
    """Write the merged traceback, and leave the error where Python leaves the last one: %hvddebug finds it there."""
    writer.say(as_text(error), "stderr")
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(None), None


def as_text(error: BaseException) -> str:
    """Return the traceback that the error brings, else one sentence."""
    render = getattr(error, "_render_traceback_", None)
    lines: list[str] = render() if render else [f"\x1b[31m{type(error).__name__}\x1b[0m: {error}"]
    return "\n".join(lines) + "\n"
