"""Root cause of a job's failure: which rank failed first by itself. Pure.

Terms.
  failure      a rank's end with a status that is not 0, in the order in which they came
  consequence  a failure that only reports another rank's
  root cause   the first failure that is not a consequence
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_kernel import errors
from hvd_kernel.diagnosis.post_mortem import signal_words

_CONSEQUENCES = (errors.HorovodInternalError, *errors.BECAUSE_OF_ANOTHER)
_LAST = re.compile(r"(?:hvd_kernel\.errors\.)?(?:" + "|".join(e.__name__ for e in _CONSEQUENCES) + r")\b")
_BEGINS = ("Traceback (most recent call last):", "Fatal Python error:")


@dataclass(frozen=True)
class FailedRank:
    """One rank's end; ``code`` as in ``subprocess``; ``words``: the end of its stderr; ``why``: what killed it."""

    rank: int
    code: int
    words: tuple[str, ...] = ()
    why: str = ""


def begins_traceback(line: str) -> bool:
    """Tell whether a line of stderr is the first of a traceback."""
    return any(sign in line for sign in _BEGINS)


def is_consequence(failure: FailedRank) -> bool:
    """Tell whether the rank failed only because another one had."""
    return failure.code == 1 and any(_LAST.match(line) for line in failure.words)


def root_cause(failures: Sequence[FailedRank]) -> FailedRank | None:
    """Return the first failure that is not a consequence of another one; else the first."""
    own = [failure for failure in failures if not is_consequence(failure)]
    return next(iter([*own, *failures]), None)


def told(code: int) -> str:
    """Return how an end is told: ``exit status 3``, or ``segmentation fault (SIGSEGV)``, as under a cell."""
    return f"exit status {code}" if code >= 0 else signal_words(-code)


def failed(code: int, why: str = "") -> str:
    """Return a failed rank's end as the verb of a sentence: ``failed (exit status 3)``, ``died: killed (SIGKILL)``."""
    if why:
        return f"failed (RankDied: {why})"
    return f"failed ({told(code)})" if code >= 0 else f"died: {told(code)}"


def shell_status(code: int) -> int:
    """Return the status that a shell would see."""
    return code if code >= 0 else 128 - code
