"""Function calls on the ranks, serialized, and their results. Without framework and MPI: ranks load this first.

Terms.
  call    bytes: where modules are found, source that no file holds, then the function with its arguments
  answer  of one rank: its value, or what it raised; everything of the user's is bytes until it is wanted
  task    a call that is carried out on a rank and becomes an answer there
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

from hvd_kernel.errors import BECAUSE_OF_ANOTHER, ClusterError, message_of
from hvd_kernel.protocol import main_objects

_REASON_CHARS = 300


@dataclass(frozen=True)
class Answer:
    """What one rank has to say."""

    value: bytes = b""
    error: bytes = b""  # empty although ``kind`` is set: the exception cannot travel
    kind: str = ""  # the exception's class name; empty: the function returned
    message: str = ""
    trace: str = ""
    secondary: bool = False  # raised only because another rank failed first
    time: float = 0.0  # CLOCK_MONOTONIC of the rank's host when it was raised
    connected: bool = True  # the rank's communication is as the function found it

    def result(self) -> Any:
        """Return the function's value."""
        return pickle.loads(self.value)  # noqa: S301 - from our own rank: a private folder, or the keyed channels

    def exception(self) -> BaseException:
        """Return what the function raised; where it cannot travel, one of the same name and message."""
        try:
            error = pickle.loads(self.error)  # noqa: S301 - as above
        except Exception:  # noqa: BLE001 - whatever its class does when it is made again
            error = None
        return error if isinstance(error, BaseException) else type(self.kind, (Exception,), {})(self.message)


class Task:
    """A call on a rank: ``perform`` it there, then ``answer`` is what goes back."""

    def __init__(self, call: bytes) -> None:
        self.call = call
        self.answer: Answer | None = None

    @property
    def connected(self) -> bool:
        """Tell whether the rank's communication is as the function found it."""
        return self.answer is None or self.answer.connected

    def perform(self) -> None:
        """Carry the call out. What it raises goes on its way after it has been noted."""
        call, self.call = self.call, b""
        before = _is_connected()
        try:
            value = _packed_value(_carry_out(call))
            self.answer = Answer(value=value, connected=_is_connected() or not before)
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


def _carry_out(call: bytes) -> Any:
    source = io.BytesIO(call)
    path, (name, lines) = pickle.load(source)  # noqa: S301 - from the process that started this rank
    sys.path += [folder for folder in path if folder not in sys.path]
    if lines:
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    func, args, kwargs = pickle.load(source)  # noqa: S301 - as above
    try:
        return func(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code in {None, 0}:
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
    """Return the answer of a rank whose function has raised; files whose path begins with ``ours`` are not its own."""
    return Answer(
        error=_packed_error(error),
        kind=type(error).__name__,
        message=message_of(error),
        trace="".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__, ours))),
        secondary=isinstance(error, BECAUSE_OF_ANOTHER),
        time=time.monotonic(),
    )


def _packed_error(error: BaseException) -> bytes:
    try:
        packed = main_objects.dumps(error)
    except Exception:  # noqa: BLE001 - it holds something that cannot travel; its text does
        return b""
    return packed


def release_peers(error: BaseException) -> None:
    """End the peers' wait for this rank, which has raised, where it has initialised communication."""
    session = sys.modules.get("hvd_kernel.core.session")
    if session is not None and session.is_initialized():
        reason = f"{type(error).__name__}: {message_of(error)}"[:_REASON_CHARS]
        session.engine().abort(reason.encode(errors="replace").decode())


def _users_part(frames: TracebackType | None, ours: str) -> TracebackType | None:
    """Leave out our own frames above the user's function."""
    rest = frames
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(ours):
        rest = rest.tb_next
    return rest or frames


def _source_of(func: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return the source of a function that was typed into a notebook, so that a traceback of a rank can show it."""
    code = getattr(func, "__code__", None)
    if code is None or Path(code.co_filename).exists():
        return "", []
    return code.co_filename, linecache.getlines(code.co_filename)


def _name(func: object) -> str:
    return f"`{getattr(func, '__qualname__', repr(func))}`"
