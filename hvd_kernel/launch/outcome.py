"""Outcome of a job: the exit codes of its ranks, and the root cause of its failure. Pure.

Terms.
  failure      a rank's exit with a status other than 0
  consequence  a failure that only reports another rank's
  root cause   the first failure that is not a consequence
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hvd_kernel import errors
from hvd_kernel.diagnosis.post_mortem import signal_words

_CONSEQUENCES = (errors.HorovodInternalError, *errors.BECAUSE_OF_ANOTHER)
_IN_A_FUTURE = f"RuntimeError: (?:{errors.CALLBACK_FAILED})?"  # torch keeps name and message
_NAMES = "|".join(e.__name__ for e in _CONSEQUENCES)
_OF_TORCH = r"(?:\[rank\d+\]: ?)?"  # the excepthook of torch.distributed marks each line
_LAST = re.compile(rf"{_OF_TORCH}(?:hvd_kernel\.(?:\w+\.)+|{_IN_A_FUTURE})?(?:{_NAMES})\b")
_TRACEBACK_STARTS = ("Traceback (most recent call last):", "Fatal Python error:")


@dataclass(frozen=True)
class Outcome:
    """The exit codes of the ranks, and the failure. A code below 0 is a signal's number, as in ``subprocess``."""

    codes: tuple[int, ...]
    failed: int | None = None  # the rank that failed first, for a reason of its own
    last_lines: tuple[str, ...] = ()  # the end of its stderr, with a whole traceback
    status: int = 0  # the shell's status of the job: the failed rank's; 128 + N for signal N
    reason: str = ""  # a limit that it has exceeded: "killed for memory: 1.02 GiB of its limit of 1 GiB"
    workers: tuple[int, ...] = ()  # of an elastic job: the process of each rank, by its unique number
    failed_worker: int | None = None  # the process of the rank ``failed``
    answers: Mapping[int, bytes] = field(default_factory=dict)  # to the job's call, of the ranks that sent one


@dataclass(frozen=True)
class FailedRank:
    """A rank's exit: ``code`` as in ``subprocess``, ``tail`` of its stderr, ``reason``: the limit that killed it."""

    rank: int
    code: int
    tail: tuple[str, ...] = ()
    reason: str = ""


def begins_traceback(line: str) -> bool:
    """Return whether a line of stderr is the first of a traceback."""
    return any(start in line for start in _TRACEBACK_STARTS)


def is_consequence(failure: FailedRank) -> bool:
    """Return whether the rank failed only because another one had failed."""
    return failure.code == 1 and any(_LAST.match(line) for line in failure.tail)


def root_cause(failures: Sequence[FailedRank]) -> FailedRank | None:
    """Return the first failure that is not a consequence, else the first; ``failures`` are in the order of time."""
    causes = [failure for failure in failures if not is_consequence(failure)]
    return next(iter([*causes, *failures]), None)


def exit_text(code: int) -> str:
    """Return an exit code in words, as under a cell: ``exit status 3``, or ``segmentation fault (SIGSEGV)``."""
    return f"exit status {code}" if code >= 0 else signal_words(-code)


def failed(code: int, reason: str = "") -> str:
    """Return the predicate of a failed rank: ``failed (exit status 3)``, ``died: killed (SIGKILL)``."""
    if reason:
        return f"failed (RankDied: {reason})"
    return f"failed ({exit_text(code)})" if code >= 0 else f"died: {exit_text(code)}"


def shell_status(code: int) -> int:
    """Return the status as a shell reports it."""
    return code if code >= 0 else 128 - code
