"""User errors: answers to the user, shown as one sentence instead of a walk through our own code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hvd_kernel.errors import ClusterError, ConfigError, HvdTimeout, RanksDiffer, UsageError
from hvd_kernel.magics.interrupts import Interrupted

USER_ERRORS = (UsageError, ClusterError, ConfigError, HvdTimeout, RanksDiffer)


@contextmanager
def user_errors() -> Iterator[None]:
    """Give user errors the traceback of one sentence (IPython asks the exception for it)."""
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
