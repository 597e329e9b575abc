"""Function calls on the ranks, serialized, and their results. Without framework and MPI: ranks load this first.

Terms.
  call    bytes: module search path, source code without a file, then the function with its arguments
  answer  of one rank: its value or exception; the user's objects stay pickled until they are needed
  task    a call that a rank executes, and its answer
"""

from __future__ import annotations

import io
import linecache
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hvd_kernel.errors import BECAUSE_OF_ANOTHER, ClusterError, message_of, without_future
from hvd_kernel.protocol import main_objects

_REASON_CHARS = 300


@dataclass(frozen=True)
class Answer:
    """The result of the call on one rank."""

    value: bytes = b""
    error: bytes = b""  # empty although ``kind`` is set: the exception cannot be pickled
    kind: str = ""  # the exception's class name; empty: the function returned
    message: str = ""
    trace: str = ""
    secondary: bool = False  # raised only because another rank failed first
    time: float = 0.0  # CLOCK_MONOTONIC of the rank's host when it was raised
    connected: bool = True  # the rank's communication is in the state in which it was before the call

    def result(self) -> Any:
        """Return the function's value."""
        return pickle.loads(self.value)  # noqa: S301 - from our own rank, over the channels of the agents

    def exception(self) -> BaseException:
        """Return the function's exception; if it could not be pickled, one of the same name and message."""
        try:
            error = pickle.loads(self.error)  # noqa: S301 - as above
        except Exception:  # noqa: BLE001 - the user's class may raise anything
            error = None
        return error if isinstance(error, BaseException) else type(self.kind, (Exception,), {})(self.message)


class Task:
    """A call on a rank: ``perform`` executes it there, then ``answer`` is its result."""

    def __init__(self, call: bytes) -> None:
        self.call = call
        self.answer: Answer | None = None

    @property
    def connected(self) -> bool:
        """Return whether the rank's communication is in the state in which it was before the call."""
        return self.answer is None or self.answer.connected

    def perform(self) -> None:
        """Execute the call and set ``answer``; an exception of the function is raised again."""
        call, self.call = self.call, b""
        was_connected = _is_connected()
        try:
            value = _packed_value(_execute(call))
            self.answer = Answer(value=value, connected=_is_connected() or not was_connected)
        except BaseException as error:
            self.answer = failed(error)
            raise


def pack_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], path: Sequence[str]) -> bytes:
    """Return the call as bytes.

    Raises
    ------
    ClusterError
        The function or an argument cannot be pickled.
    """
    out = io.BytesIO()
    pickle.dump((list(path), _source_of(func)), out)
    try:
        main_objects.MainPickler(out).dump((func, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ClusterError(f"{_name(func)} with its arguments cannot be sent to the ranks: {error}") from error
    return out.getvalue()


def _execute(call: bytes) -> Any:
    source = io.BytesIO(call)
    path, (name, lines) = pickle.load(source)  # noqa: S301 - from the process that started this rank
    sys.path += [folder for folder in path if folder not in sys.path]
    if lines:
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    func, args, kwargs = pickle.load(source)  # noqa: S301 - as above
    try:
        return func(*args, **kwargs)
    except SystemExit as system_exit:
        if system_exit.code in {None, 0}:
            return None
        raise


def _is_connected() -> bool:
    session = sys.modules.get("hvd_kernel.core.session")
    return session is not None and bool(session.is_initialized())


def _packed_value(value: Any) -> bytes:
    try:
        packed = main_objects.dumps(value)
    except Exception as error:
        raise TypeError(f"the function's result, a {type(value).__name__}, cannot be sent back: {error}") from error
    return packed


def failed(error: BaseException, ours: str = __file__) -> Answer:
    """Return the answer of a rank whose function has raised; frames in files that begin with ``ours`` are left out."""
    return Answer(
        error=_packed_error(error),
        kind=type(error).__name__,
        message=message_of(error),
        trace="".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__, ours))),
        secondary=isinstance(without_future(error), BECAUSE_OF_ANOTHER),
        time=time.monotonic(),
    )


def _packed_error(error: BaseException) -> bytes:
    try:
        packed = main_objects.dumps(error)
    except Exception:  # noqa: BLE001 - it cannot be pickled; its text is sent
        return b""
    return packed


def release_peers(error: BaseException) -> None:
    """Abort the communicator, if this rank has initialized it, so that its peers do not wait for it."""
    session = sys.modules.get("hvd_kernel.core.session")
    if session is not None and session.is_initialized():
        reason = f"{type(error).__name__}: {message_of(error)}"[:_REASON_CHARS]
        session.engine().abort(reason.encode(errors="replace").decode())


def _users_part(frames: TracebackType | None, ours: str) -> TracebackType | None:
    """Return the traceback without our frames above the user's function."""
    rest = frames
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(ours):
        rest = rest.tb_next
    return rest or frames


def _source_of(func: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return the file name and source of a function from a notebook cell, for the tracebacks of a rank."""
    code = getattr(func, "__code__", None)
    if code is None or Path(code.co_filename).exists():
        return "", []
    return code.co_filename, linecache.getlines(code.co_filename)


def _name(func: object) -> str:
    return f"`{getattr(func, '__qualname__', repr(func))}`"
