"""Collectives that one run of a graph carries out, with the functions that it calls. Pure: a GraphDef goes in.

Terms.
  part   of a name, what is behind its last slash: the node's own name, wherever its function is called
  once   a node that runs each of its functions at most once, when it runs itself; loops do not
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

BARRIER = "barrier.noname"  # a barrier meets a barrier
_NO_COLLECTIVES = frozenset(
    f"Hvd{name}"
    for name in ("Size", "Rank", "LocalSize", "LocalRank", "ProcessSetIncluded", "Ticket", "Step", "Samples")
)
_ONCE = frozenset(("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"))
_OPAQUE = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc", "RemoteCall", "SymbolicGradient", "HvdJoin"))
_LOOP = "NextIteration"  # of graphs of version 1

Counts = Counter[str]


def operations(graph: Any) -> Counts | None:
    """Count a graph's collectives by the last parts of their names: no run has more of them.

    Parameters
    ----------
    graph
        A tf.compat.v1.GraphDef, with the library of its functions.

    Returns
    -------
    Counter or None
        None: that cannot be told. They are in a loop, or code of Python's is, that may call anything; or a join is,
        which stands for all others.
    """
    return _Functions(graph.library.function).of(graph.node)


class _Functions:
    def __init__(self, definitions: Iterable[Any]) -> None:
        self._nodes = {each.signature.name: each.node_def for each in definitions}
        self._known: dict[str, Counts | None] = {}

    def of(self, nodes: Iterable[Any]) -> Counts | None:
        found: Counts = Counter()
        loops = False
        for node in nodes:
            loops = loops or node.op == _LOOP
            mine = self._of_node(node)
            if mine is None:
                return None
            found += mine
        return None if loops and found else found

    def _of_node(self, node: Any) -> Counts | None:
        if node.op in _OPAQUE:
            return None
        if node.op.startswith("Hvd"):
            part = BARRIER if node.op == "HvdBarrier" else node.name.rpartition("/")[2]
            return Counter() if node.op in _NO_COLLECTIVES else Counter([part])
        found: Counts = Counter()
        for function in self._called_by(node):
            its = self._of_function(function)
            if its is None or (its and node.op not in _ONCE and node.op not in self._nodes):
                return None
            found += its
        return found

    def _called_by(self, node: Any) -> list[str]:
        called = [node.op] if node.op in self._nodes else []
        for value in node.attr.values():
            named = [value.func, *value.list.func]
            called += [each.name for each in named if each.name]
        return called

    def _of_function(self, name: str) -> Counts | None:
        if name not in self._known:
            self._known[name] = None  # while it is looked at: one that calls itself is a loop
            self._known[name] = self.of(self._nodes.get(name, ()))
        return self._known[name]
