"""Names of operations in compiled programs: equal on all ranks, and different for each call in a program.

A call without a name gets a name from its position in the source: function, line, and a digest of the functions that
are being traced around it. Calls of the same name in a trace are numbered. So a name does not depend on what else a
rank has traced before, and the operations of ranks that trace again, or later, still match.

Terms.
  trace  JAX runs a function once to record its operations; an inner jitted function has a trace of its own
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
    """Return the name of a call of the user; "" outside of a trace, where calls are numbered."""
    trace = _trace()
    if trace is None:
        return name or ""
    return _TraceNames.of(trace).unique(name or _position())


def derived(name: str, suffix: str) -> str:
    """Return the name of an operation that JAX derives from another: ``derived("loss", "t")`` for its transpose."""
    trace = _trace()
    if not name or trace is None:
        return ""
    names = _TraceNames.of(trace)
    unique = names.unique(f"{name}.{suffix}")
    names.derived.add(unique)
    return unique


def retraced(name: str) -> str:
    """Return the name of an operation that JAX traces again: the same, numbered if it equals a derived name."""
    trace = _trace()
    if not name or trace is None:
        return ""
    names = _TraceNames.of(trace)
    return names.unique(name) if name in names.derived else name


def is_traced() -> bool:
    """Return whether a program is being traced."""
    return not is_plain() and _trace() is not None


def is_plain() -> bool:
    """Return True if JAX neither traces nor transforms anything, False if it may; takes less than a microsecond."""
    return bool(_IS_PLAIN())


class _TraceNames:
    """The names of the operations in a trace."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.derived: set[str] = set()

    @staticmethod
    def of(trace: Any) -> _TraceNames:
        return _names.setdefault(trace, _TraceNames())

    def unique(self, name: str) -> str:
        number = self.counts[name]
        self.counts[name] += 1
        return f"{name}~{number}" if number else name


_names: WeakKeyDictionary[Any, _TraceNames] = WeakKeyDictionary()


def _trace() -> Any:
    """Return the innermost trace of a program."""
    for frame in _outwards():
        code = frame.f_code
        if code.co_filename.endswith(_TRACING) and code.co_name.startswith("trace_to_"):
            for value in frame.f_locals.values():
                if type(value).__name__ == "DynamicJaxprTrace":
                    return value
    return None


def _position() -> str:
    """Return the position of a call in the traced function; JAX reuses the trace, and with it this name.

    Example: ``"loss_fn:12.8d3f01aa"``; "jit" if the operation itself is traced, as in ``jax.jit(hvd.allreduce)``.
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
    """Return whether a frame belongs to a package, by its module: pickled functions keep that, but not their file."""
    module = str(frame.f_globals.get("__name__"))
    return module == package or module.startswith(f"{package}.")


def _outwards() -> Iterable[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way
    while frame is not None:
        yield frame
        frame = frame.f_back
