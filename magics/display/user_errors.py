"""Errors as a user sees them: several ranks' failures as one exception, our own as one sentence; ``--no-raise-error``.

The exception of several ranks has the name of the rank's class, and begins with the root cause. With --no-raise-error
a failure of the ranks is shown in full and the cell itself succeeds: for notebooks that show an error on purpose and
run where any error output means failure (papermill ignores the tag raises-exception). A wrong option, missing ranks
and the interrupt key still fail the cell.

Terms.
  root        the first failure that was not caused by another rank's; of the same error on several ranks within
              MOMENT_S it is the lowest rank's, so that a cell fails in the same way every time
  death       a rank's process is gone; it is the root whatever other ranks raised, as it is detected with a delay
  secondary   a rank that was released from a collective because another rank failed
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import IOBase
from threading import Lock, Thread
from types import BuiltinFunctionType, CoroutineType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import ClusterError, ConfigError, HvdTimeout, RanksDiffer, UsageError
from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.magics.display.rank_text import merge
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.protocol.messages import Failure

if TYPE_CHECKING:
    from hvd_kernel.magics.display.writer import Writer


MOMENT_S = 1.0

MAX_TEXT = 200
"""Characters of an error in a sentence."""

MAX_OTHERS = 8
"""Lines about failures other than the root."""

_NAME_ONLY = (SyntaxError, ExceptionGroup)
"""IPython has its own display for a SyntaxError; an ExceptionGroup cannot be made from a message."""

_NAME_ERROR = re.compile(r"name '(\w+)' is not defined")

_NEVER_SENT = (GeneratorType, CoroutineType, IOBase, type(Lock()), Thread)
"""Values that cannot leave their process."""

Hint = Callable[[str], str]
"""Maps a name that a rank does not define to a remedy, or to an empty string."""


def no_hint(_name: str) -> str:
    """Return no hint."""
    return ""


def local_hint(names: Mapping[str, Any]) -> Hint:
    """Return hints for names that the notebook defines: how to import them on the ranks, or to push them."""

    def hint(name: str) -> str:
        if name not in names:
            return ""
        value = names[name]
        if statement := _import_of(name, value):
            return f"`{name}` is imported in the notebook, not on the ranks: add `{statement}` to the cell"
        if isinstance(value, _NEVER_SENT):
            kind = type(value).__name__
            return f"`{name}` ({kind}) exists in the notebook and cannot be sent: create it in a cell on the ranks"
        return f"`{name}` exists in the notebook, not on the ranks: add --push {name}"

    return hint


def _import_of(name: str, value: Any) -> str:
    """Return the statement that imports a module, or a function or class of one; "" for other values."""
    if isinstance(value, ModuleType):
        module = value.__name__
        return f"import {module}" if module == name else f"import {module} as {name}"
    origin, original = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(value, type | FunctionType | BuiltinFunctionType) or origin in {None, "__main__", "builtins"}:
        return ""
    if original != getattr(value, "__name__", ""):  # defined inside a class or a function
        return ""
    return f"from {origin} import {original}" + (f" as {name}" if original != name else "")


class RankError(Exception):
    """An error of one or more ranks, raised again in the notebook; its concrete class has the name of theirs."""

    failures: tuple[Failure, ...]
    lines: tuple[str, ...]
    rank: int

    def __init__(self, failures: Sequence[Failure], lines: Sequence[str]) -> None:
        Exception.__init__(self, failures[0].evalue)  # not the real class's: some require five arguments
        self.failures = tuple(failures)
        self.lines = tuple(lines)
        self.rank = failures[0].rank

    def __str__(self) -> str:
        return self.failures[0].evalue

    def _render_traceback_(self) -> list[str]:
        return list(self.lines)


def by_cause(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures, root cause first: deaths, then other primary failures by time, then secondary ones."""
    ordered = sorted(failures, key=lambda f: (f.secondary, not _is_death(f), f.time, f.rank))
    first = ordered[0]
    alike = [f for f in ordered if (f.ename, f.secondary) == (first.ename, first.secondary)]
    root = min((f for f in alike if f.time - first.time < MOMENT_S), key=lambda f: f.rank)
    return [root, *(f for f in ordered if f is not root)]


def is_own(failure: Failure) -> bool:
    """Return whether neither another rank nor an interrupt caused the failure."""
    return not failure.secondary and failure.ename != "KeyboardInterrupt"


def still_running(rank: int, ename: str, evalue: str, running: Collection[int]) -> str:
    """Return the sentence about a failed rank while other ranks have not noticed and still run."""
    text = summary(ename, evalue)[:MAX_TEXT]
    cause = evalue.split("\n", maxsplit=1)[0] if ename == "RankDied" else f"rank {rank} raised {text}"
    run, them = ("runs", "it") if len(running) == 1 else ("run", "them")
    return f"{cause}; {rank_list(running)} still {run}: interrupt the cell to end {them}"


def summary(ename: str, evalue: str) -> str:
    """Return an error in one line."""
    return f"{ename}: {evalue}".rstrip(": ").split("\n")[0]


def merged_error(failures: Sequence[Failure], hint: Hint = no_hint, more: Sequence[str] = ()) -> RankError:
    """Return the exception of the cell.

    Parameters
    ----------
    failures
        At least one.
    hint
        Returns the remedy for a name that a rank does not define; see ``local_hint``.
    more
        Lines after the failures.
    """
    ordered = by_cause(failures)
    root = ordered[0]
    return _class_named(root.ename)(ordered, [*_traceback(ordered, hint), *more])


def _is_death(failure: Failure) -> bool:
    return failure.ename == "RankDied" and not failure.secondary  # secondary: an error caused by a death


def _traceback(ordered: Sequence[Failure], hint: Hint) -> list[str]:
    root = ordered[0]
    same, lines = _in_full(ordered, hint)
    others = [f for f in ordered if not f.secondary and f.rank not in same]
    if _is_death(root) and (raised := [f for f in others if not _is_death(f)]):
        also, more = _in_full(by_cause(raised), hint)
        lines += more
        others = [f for f in others if f.rank not in also]
    lines += one_line_each(others)
    if released := [f.rank for f in ordered[1:] if f.secondary and f.rank not in same]:
        lines.append(f"{label(released)} released, because rank {root.rank} failed")
    return lines


def _in_full(ordered: Sequence[Failure], hint: Hint) -> tuple[set[int], list[str]]:
    """Return the ranks with the first failure, and its lines."""
    root = ordered[0]
    same = {f.rank for f in ordered if (f.ename, f.evalue, f.secondary) == (root.ename, root.evalue, root.secondary)}
    lines = [f"\x1b[31m{root.ename}\x1b[0m on {rank_list(same)}", *root.traceback]
    missing = _NAME_ERROR.search(root.evalue) if root.ename == "NameError" else None
    if missing and (sentence := hint(missing[1])):
        lines.append(sentence)
    return same, lines


def one_line_each(failures: Sequence[Failure]) -> list[str]:
    """Return one line per failure, without traceback, equal ones once."""
    lines = [
        f"{label(ranks)} {text}" for ranks, text in merge({f.rank: [summary(f.ename, f.evalue)] for f in failures})
    ]
    if len(lines) > MAX_OTHERS:
        return [*lines[:MAX_OTHERS], f"… and {len(lines) - MAX_OTHERS} more"]
    return lines


def _class_named(ename: str) -> type[RankError]:
    """Return a subclass of RankError with the real class's name, and of the real class if it is a builtin."""
    real = getattr(builtins, ename, None)
    bases: tuple[type, ...] = (RankError,)
    if isinstance(real, type) and issubclass(real, Exception) and not issubclass(real, _NAME_ONLY):
        bases = (RankError,) if real is Exception else (RankError, real)
    return type(ename, bases, {"__module__": "builtins" if real else __name__})


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
