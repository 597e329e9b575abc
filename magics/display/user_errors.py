"""Errors as a user sees them: one sentence instead of a traceback through our code; ``--no-raise-error``.

With that option a failure of the ranks is shown in full and the cell itself succeeds: for notebooks that show an error
on purpose and run where any error output means failure (papermill ignores the tag raises-exception). A wrong option,
missing ranks and the interrupt key still fail the cell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hvd_kernel.errors import ClusterError, ConfigError, HvdTimeout, RanksDiffer, UsageError
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.interrupts import Interrupted

if TYPE_CHECKING:
    from hvd_kernel.magics.display.writer import Writer


USER_ERRORS = (UsageError, ClusterError, ConfigError, HvdTimeout, RanksDiffer)


@contextmanager
def user_errors() -> Iterator[None]:
    """Set a traceback of one sentence on user errors (IPython calls the exception's ``_render_traceback_``)."""
    try:
        yield
    except USER_ERRORS as error:
        text = f"\x1b[31m{type(error).__name__}\x1b[0m: {error}"
        vars(error)["_render_traceback_"] = lambda: [text]
        raise
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted("the request to the ranks continues, but nothing waits for its result") from None


OF_THE_RANKS = (RankError, HvdTimeout)
"""Failures of a cell's ranks: an exception, a death, or the time limit of --timeout."""


def show_error(error: BaseException, writer: Writer) -> None:
    """Write the merged traceback, and set ``sys.last_value``, where %hvddebug finds the error."""
    writer.write(as_text(error), "stderr")
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(None), None


def as_text(error: BaseException) -> str:
    """Return the error's own traceback, else one sentence."""
    render = getattr(error, "_render_traceback_", None)
    lines: list[str] = render() if render else [f"\x1b[31m{type(error).__name__}\x1b[0m: {error}"]
    return "\n".join(lines) + "\n"
