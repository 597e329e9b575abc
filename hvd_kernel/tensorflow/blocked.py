"""Deadlock detection in a rank: report to the core that this rank is blocked, so that different graphs become an error.

Ranks that wait for operations of different names wait forever if none of them can reach the other's operation. A thread
of this rank checks periodically; when an operation has waited for a while, it determines which operations this rank may
still request: those left in the running graphs, if every thread that may call Horovod executes a graph. The core
receives these and compares the ranks (native/engine/controller/stall.h). If they are unknown, because another thread
runs the user's code or a graph has a loop, nothing is reported; the stall check covers these cases.

Terms.
  run     a thread is inside TensorFlow and executes a graph, or waits for an operation in eager mode
  begun   of a graph's collectives, those that this run has requested
  caller  a thread that has called Horovod or may call it: one that runs the user's code. A daemon thread counts only
          after a call: others monitor the machine, or read data
  part    of a name, the component after its last slash: the node's own name, wherever its function is called
  once    a node that runs each of its functions at most once, when it runs itself; loops do not
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from hvd_kernel.core import call_stack, deadlocks, session
from hvd_kernel.errors import NotInitialized
from hvd_kernel.tensorflow import library

POLL_S = 0.15
"""Seconds between two checks; a check that finds no waiting operation costs some microseconds."""

WAIT_S = 0.4
"""Seconds after which a waiting operation is reported: a deadlock becomes an error within a second."""

MOST_S = 10.0
"""Longest pause, in seconds, between two reports of the same state."""

BARRIER = "barrier.noname"  # barriers match each other
_NO_COLLECTIVES = frozenset(
    f"Hvd{name}"
    for name in ("Size", "Rank", "LocalSize", "LocalRank", "ProcessSetIncluded", "Ticket", "Step", "Samples")
)
_ONCE = frozenset(("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"))
_OPAQUE = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc", "RemoteCall", "SymbolicGradient", "HvdJoin"))
_LOOP = "NextIteration"  # of graphs of version 1

Counts = Counter[str]

_EXECUTE, _CONTEXT = "tensorflow.python.eager.execute", "tensorflow.python.eager.context"
_SESSION = "tensorflow.python.client.session"
_HANDLES = "hvd_kernel.core.handles"

_callers: set[int] = set()
_reported = ("", 0.0, 0.0)  # the state, the time of its next report, and the pause in seconds before that
_counted: WeakKeyDictionary[Any, tuple[int, Counts | None]] = WeakKeyDictionary()  # graph -> version, collectives


@functools.cache
def watch() -> threading.Thread:
    """Start the thread, once per process."""
    deadlocks.delegate_waits_to("tensorflow")
    thread = threading.Thread(target=_watch, name="hvd-blocked", daemon=True)
    thread.start()
    return thread


def add_caller() -> None:
    """Record that this thread calls Horovod, and may do so again."""
    _callers.add(threading.get_ident())


def _watch() -> None:
    never = threading.Event()
    while not never.wait(POLL_S):
        if library.has_calls_in_progress() or call_stack.inside_core():
            _report()
        else:
            _forget()


def _report() -> None:
    """Report that this rank is blocked, if it is and the operations that it may request are known."""
    at = time.monotonic()
    try:
        engine = session.engine()
    except NotInitialized:
        return
    pending: Any = engine.pending()
    awaited = [operation for operation in pending if engine.rank not in operation["missing"]]
    if not awaited or min(operation["seconds"] for operation in awaited) < WAIT_S:
        _forget()
        return
    left = _requestable()
    waits = [(operation["process_set"], operation["name"]) for operation in awaited]
    if left is not None and _is_due(f"{waits} {sorted(left)}", at):
        deadlocks.send(engine, at, waits, sorted(left))


def _forget() -> None:
    global _reported  # noqa: PLW0603 - state of the thread
    _reported = "", 0.0, 0.0


def _is_due(state: str, now: float) -> bool:
    """Return whether to report a state: a new one at once, then at growing intervals, as the core may reject it.

    The core accepts a report only while it has received all of the rank's requests. If another rank is late, all ranks
    that wait for it report.
    """
    global _reported  # noqa: PLW0603 - state of the thread
    before, due, pause = _reported
    if state == before and now < due:
        return False
    pause = min(2 * pause, MOST_S) if state == before else POLL_S
    _reported = state, now + pause, pause
    return True


def _requestable() -> set[str] | None:
    """Return the last parts of the names that this rank may request while it waits; None if they are unknown."""
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
    """Return the graph that a thread executes, ``_NONE`` in eager mode; None if it does something else."""
    module, ours = _module(frame), library.ops().__name__
    if module == _HANDLES:
        return _NONE if frame.f_code.co_name == "synchronize" else None
    if module == _SESSION:
        return getattr(frame.f_locals.get("self"), "graph", None)
    if module == _EXECUTE and frame.f_back is not None:
        frame = frame.f_back
    if _module(frame) == ours:
        return _NONE  # an operation in eager mode: while a graph is built, the inner frames are TensorFlow's own
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


def operations(graph: Any) -> Counts | None:
    """Count a graph's collectives by the last parts of their names; a run has no more of them. Pure.

    Parameters
    ----------
    graph
        A tf.compat.v1.GraphDef, with the library of its functions.

    Returns
    -------
    Counter or None
        None if the number is unknown: the graph has collectives in a loop, or calls Python code, which may request any
        operation; or it has a join, which stands for all others.
    """
    return _Functions(graph.library.function).count(graph.node)


class _Functions:
    """The functions of a graph, by name."""

    def __init__(self, definitions: Iterable[Any]) -> None:
        self._nodes = {definition.signature.name: definition.node_def for definition in definitions}
        self._counts: dict[str, Counts | None] = {}

    def count(self, nodes: Iterable[Any]) -> Counts | None:
        """Count the collectives of a graph's or a function's nodes."""
        total: Counts = Counter()
        loops = False
        for node in nodes:
            loops = loops or node.op == _LOOP
            counts = self._count_node(node)
            if counts is None:
                return None
            total += counts
        return None if loops and total else total

    def _count_node(self, node: Any) -> Counts | None:
        if node.op in _OPAQUE:
            return None
        if node.op.startswith("Hvd"):
            part = BARRIER if node.op == "HvdBarrier" else node.name.rpartition("/")[2]
            return Counter() if node.op in _NO_COLLECTIVES else Counter([part])
        total: Counts = Counter()
        for function in self._called_by(node):
            counts = self._count_function(function)
            if counts is None or (counts and node.op not in _ONCE and node.op not in self._nodes):
                return None
            total += counts
        return total

    def _called_by(self, node: Any) -> list[str]:
        called = [node.op] if node.op in self._nodes else []
        for attribute in node.attr.values():
            functions = [attribute.func, *attribute.list.func]
            called += [function.name for function in functions if function.name]
        return called

    def _count_function(self, name: str) -> Counts | None:
        if name not in self._counts:
            self._counts[name] = None  # while it is counted: a function that calls itself is a loop
            self._counts[name] = self.count(self._nodes.get(name, ()))
        return self._counts[name]
