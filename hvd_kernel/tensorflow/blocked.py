"""Deadlock detection, a rank's part: it tells the core when it is blocked. So ranks whose graphs differ get an error.

Ranks that wait for operations of different names wait for ever, if none of them can come to the other's. A thread of
this rank looks now and then, and where something has waited for a while, finds out what this rank may still ask for:
what is left of the graphs that run, if every thread that may call us is inside of one. That goes to the core, which
compares the ranks (native/engine/controller/deadlock.h). Where it cannot be known, nothing is said: another thread of
the user's runs, or a graph has a loop. The stall check tells of those.

Terms.
  run     a thread is inside TensorFlow and executes a graph, or waits for an operation in eager mode
  begun   of a graph's collectives, those that this run has asked for
  caller  a thread that has called us, or may at any time: one that runs the user's code. Of daemon threads those only
          that have: others watch the machine, or read data
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from hvd_kernel.core import call_stack, deadlocks, session
from hvd_kernel.errors import NotInitialized
from hvd_kernel.tensorflow import library
from hvd_kernel.tensorflow.graph_operations import Counts, operations

LOOK_S = 0.15
"""Between two looks; one at which nothing waits costs some microseconds."""

WAIT_S = 0.4
"""What has waited so long is looked at: with the other ranks' looks, told within a second."""

MOST_S = 10.0
"""Between two times that the same is said."""

_EXECUTE, _CONTEXT = "tensorflow.python.eager.execute", "tensorflow.python.eager.context"
_SESSION = "tensorflow.python.client.session"
_HANDLES = "hvd_kernel.core.handles"

_callers: set[int] = set()
_said = ("", 0.0, 0.0)  # to the core: what, when it is said again, and after how many seconds then
_counted: WeakKeyDictionary[Any, tuple[int, Counts | None]] = WeakKeyDictionary()  # of graphs, at their versions


@functools.cache
def watch() -> threading.Thread:
    """Begin, once in a process."""
    deadlocks.delegate_waits_to("tensorflow")
    thread = threading.Thread(target=_watch, name="hvd-blocked", daemon=True)
    thread.start()
    return thread


def called() -> None:
    """Take note that this thread calls us: it may do so again."""
    _callers.add(threading.get_ident())


def _watch() -> None:
    never = threading.Event()
    while not never.wait(LOOK_S):
        if library.calls_under_way() or call_stack.inside_core():
            look()
        else:
            _forget()


def look() -> None:
    """Tell the core that this rank is blocked, if it is and what it may ask for is known."""
    at = time.monotonic()
    try:
        engine = session.engine()
    except NotInitialized:
        return
    pending: Any = engine.pending()
    own = [each for each in pending if engine.rank not in each["missing"]]
    if not own or min(each["seconds"] for each in own) < WAIT_S:
        _forget()
        return
    left = may_ask()
    waits = [(each["process_set"], each["name"]) for each in own]
    if left is not None and _is_news(f"{waits} {sorted(left)}", at):
        deadlocks.send(engine, at, waits, sorted(left))


def _forget() -> None:
    global _said  # noqa: PLW0603 - of the thread that watches
    _said = "", 0.0, 0.0


def _is_news(what: str, now: float) -> bool:
    """Tell whether to say it: at once where it is new, then ever more rarely, since the core may not have believed it.

    A rank's word counts only while the core knows all that the rank has asked for. Where another one is late, all who
    wait for it say so.
    """
    global _said  # noqa: PLW0603 - of the thread that watches
    before, due, pause = _said
    if what == before and now < due:
        return False
    pause = min(2 * pause, MOST_S) if what == before else LOOK_S
    _said = what, now + pause, pause
    return True


def may_ask() -> set[str] | None:
    """Return the last parts of the names that this rank may ask for while it waits; None: that is not known."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    left: Counts = Counter()
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
        graph = _graph_of(frame)
        if graph is None:
            if ident == main or ident in _callers or call_stack.runs_user_code(threads.get(ident), frame):
                return None
            continue
        _callers.add(ident)
        if graph is not _NONE:
            counts = _operations_of(graph)
            if counts is None:
                return None
            left += counts
    left.subtract(name.rpartition("/")[2] for name in library.begun())
    return {part for part, count in left.items() if count > 0}


_NONE = object()
"""A thread waits for an operation, and runs no graph."""


def _graph_of(frame: FrameType) -> Any:
    """Return the graph that a thread executes; None: it does something else."""
    module, ours = _module(frame), library.ops().__name__
    if module == _HANDLES:
        return _NONE if frame.f_code.co_name == "synchronize" else None
    if module == _SESSION:
        return getattr(frame.f_locals.get("self"), "graph", None)
    if module == _EXECUTE and frame.f_back is not None:
        frame = frame.f_back
    if _module(frame) == ours:
        return _NONE  # an operation in eager mode: where a graph is made, TensorFlow's own functions are further in
    if module != _EXECUTE or _module(frame) != _CONTEXT or frame.f_back is None:
        return None
    return getattr(frame.f_back.f_locals.get("self"), "graph", None)


def _operations_of(graph: Any) -> Counts | None:
    version, counts = _counted.get(graph, (-1, None))
    if version != graph.version:
        version, counts = graph.version, operations(graph.as_graph_def())
        _counted[graph] = version, counts
    return counts


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
