"""Names of operations in compiled programs: equal on all ranks, and different for each call in a program.

A call without a name gets one by its place in the source: function, line, and a digest of the functions that are being
traced around it. What comes to stand under one name twice in a trace is numbered. So a name says nothing of what else
a rank has traced before, and ranks that trace again, or later, still meet.

Terms.
  trace  JAX runs a function once to see what it does; an inner function that is jitted by itself has one of its own
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

_HERE = "hvd_kernel.jax"
_TRACING = "partial_eval.py"
_IS_PLAIN = getattr(importlib.import_module("jax._src.core"), "trace_state_clean", bool)


def of_call(name: str | None) -> str:
    """Return the name of a call of the user's; "": outside of a trace, where calls are numbered."""
    trace = _trace()
    if trace is None:
        return name or ""
    return _Taken.of(trace).unique(name or _place())


def made_of(name: str, how: str) -> str:
    """Return the name of an operation that JAX makes of another one: ``made_of("loss", "t")``, its transpose."""
    trace = _trace()
    if not name or trace is None:
        return ""
    taken = _Taken.of(trace)
    unique = taken.unique(f"{name}.{how}")
    taken.made.add(unique)
    return unique


def again(name: str) -> str:
    """Return the name of an operation that JAX traces again: its own, unless another one has been made of that name."""
    trace = _trace()
    if not name or trace is None:
        return ""
    taken = _Taken.of(trace)
    return taken.unique(name) if name in taken.made else name


def is_traced() -> bool:
    """Tell whether a program is being traced."""
    return not is_plain() and _trace() is not None


def is_plain() -> bool:
    """Tell, in a fraction of a microsecond, that JAX neither traces nor transforms anything; False: it may."""
    return bool(_IS_PLAIN())


class _Taken:
    """The names in a trace."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.made: set[str] = set()

    @staticmethod
    def of(trace: Any) -> _Taken:
        return _taken.setdefault(trace, _Taken())

    def unique(self, name: str) -> str:
        number = self.counts[name]
        self.counts[name] += 1
        return f"{name}~{number}" if number else name


_taken: WeakKeyDictionary[Any, _Taken] = WeakKeyDictionary()


def _trace() -> Any:
    """Return the innermost trace of a program."""
    for frame in _outwards():
        code = frame.f_code
        if code.co_filename.endswith(_TRACING) and code.co_name.startswith("trace_to_"):
            found = next((each for each in frame.f_locals.values() if type(each).__name__ == "DynamicJaxprTrace"), None)
            if found is not None:
                return found
    return None


def _place() -> str:
    """Return the place of a call in what is being traced: JAX keeps that for wherever it is used again.

    Example: ``"loss_fn:12.8d3f01aa"``; "jit" where an operation is itself what is traced.
    """
    users: list[tuple[str, int]] = []
    for frame in _outwards():
        if _is_of(frame, "jax"):
            break
        if not _is_of(frame, _HERE):
            users.append((frame.f_code.co_qualname, frame.f_lineno))
    if not users:
        return "jit"
    function = users[0][0].replace(".<locals>", "").replace("<lambda>", "lambda")
    return f"{function}:{users[0][1]}.{zlib.crc32(repr(users).encode()):08x}"


def _is_of(frame: FrameType, package: str) -> bool:
    """Tell by its module, which functions keep when they are pickled: their file they do not."""
    module = str(frame.f_globals.get("__name__"))
    return module == package or module.startswith(f"{package}.")


def _outwards() -> Iterable[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way
    while frame is not None:
        yield frame
        frame = frame.f_back
