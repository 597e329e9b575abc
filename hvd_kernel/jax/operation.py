"""Operations of compiled programs: their parameters, as attributes of a JAX primitive and of the plugin, and names.

Names are equal on all ranks, and different for each call in a program. A call without a name gets a name from its
position in the source: function, line, and a digest of the functions that are being traced around it. Calls of the same
name in a trace are numbered. So a name does not depend on what else a rank has traced before, and the operations of
ranks that trace again, or later, still match.

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
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np

from hvd_kernel.core.tensor import Average, Sum

ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER = 0, 1, 2, 5, 6  # native/c_api/hvd_core.h
BARRIER = 3
KINDS = {
    ALLREDUCE: "allreduce",
    ALLGATHER: "allgather",
    BROADCAST: "broadcast",
    ALLTOALL: "alltoall",
    REDUCESCATTER: "reducescatter",
}
ELEMENTWISE = (ALLREDUCE, BROADCAST)

_HERE = "hvd_kernel.jax"
_TRACING = "partial_eval.py"
_IS_PLAIN = getattr(importlib.import_module("jax._src.core"), "trace_state_clean", bool)


class OperationParams(NamedTuple):
    """Parameters of an operation's primitive, the same for all operands."""

    kind: int
    name: str  # "": named by the number of the call
    set: int = 0
    op: int = Average
    root: int = 0
    size: int = 0  # of the set when the operation was traced, if a shape depends on it
    only: int = -1  # the only rank whose result is not zero; -1: all ranks
    prescale: float = 1.0
    postscale: float = 1.0
    grouped: bool = False
    step: bool = False  # reduces the last gradients of a step
    samples: int = 0  # of the step, if known

    @property
    def wire_name(self) -> str:
        """Horovod's name of the operation, by which ranks match it."""
        return f"{'grouped_' if self.grouped else ''}{KINDS[self.kind]}.{self.name}" if self.name else ""

    @property
    def is_linear(self) -> bool:
        """Whether the operation is linear: a sum of operands gives the sum of results."""
        return self.kind not in {ALLREDUCE, REDUCESCATTER} or self.op in {Average, Sum}

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments for ``Primitive.bind``."""
        return self._asdict()

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes for the plugin: native/jax/call.cc."""
        numbers = {"kind": self.kind, "set": self.set, "op": self.op, "root": self.root}
        numbers |= {"size": self.size, "only": self.only, "step": int(self.step), "samples": self.samples}
        scales = {"prescale": np.float64(self.prescale), "postscale": np.float64(self.postscale)}
        return {"name": self.wire_name} | {name: np.int32(number) for name, number in numbers.items()} | scales

    def but(self, **changes: Any) -> Self:
        """Return a copy with changed parameters."""
        return self._replace(**changes)


# Names.


def name_of_call(name: str | None) -> str:
    """Return the name of a call of the user; "" outside of a trace, where calls are numbered."""
    trace = _trace()
    if trace is None:
        return name or ""
    return _TraceNames.of(trace).unique(name or _position())


def derived_name(name: str, suffix: str) -> str:
    """Return the name of an operation that JAX derives from another: of a transpose ``derived_name("loss", "t")``."""
    trace = _trace()
    if not name or trace is None:
        return ""
    names = _TraceNames.of(trace)
    unique = names.unique(f"{name}.{suffix}")
    names.derived.add(unique)
    return unique


def retraced_name(name: str) -> str:
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
