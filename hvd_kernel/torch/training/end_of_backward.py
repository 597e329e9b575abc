"""The end of a backward pass: where the gradients that it has started are finished, before ``backward`` returns.

Autograd has one list of callbacks for each pass. A pass within another one (a checkpointed segment with
``use_reentrant=True``) has a list of its own; reductions go on until the outermost pass ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch


class _Reducer(Protocol):
    number: int

    @property
    def name(self) -> str:
        """What ranks match it by."""

    def finish_pass(self) -> None:
        """Finish what the pass has started."""


class _Pass:
    """A backward pass, as long as autograd works at it."""

    def __init__(self) -> None:
        self.reducers: list[_Reducer] = []

    def __call__(self) -> None:
        """Finish the reducers, in the same order on all ranks."""
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - of the outer pass, if there is one
        if node is None or not _deferred_to_outer(node, self.reducers):
            for reducer in sorted(self.reducers, key=lambda reducer: (reducer.name, reducer.number)):
                reducer.finish_pass()


_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()  # by autograd's number


current_pass: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 - as torch's checkpointing
"""Return autograd's number of the backward pass that this thread works at, -1 if it does not."""


def notify(reducer: _Reducer) -> None:
    """Have a reducer finish at the end of the backward pass that runs now; called by autograd's hooks."""
    number = current_pass()
    current = _passes.get(number)
    if current is None:
        current = _passes[number] = _Pass()
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - as DistributedDataParallel
        engine.queue_callback(current)
    if reducer not in current.reducers:
        current.reducers.append(reducer)


def _deferred_to_outer(node: Any, reducers: list[_Reducer]) -> bool:
    """Finish at the end of the outer pass instead: its next nodes notify it. False if there are none."""
    following = [follower for follower, _ in node.next_functions if follower is not None]
    hooks: list[Any] = []

    def resume(_gradients: Any) -> None:
        for hook in hooks:
            hook.remove()
        for reducer in reducers:
            notify(reducer)

    hooks.extend(follower.register_prehook(resume) for follower in following)
    return bool(following)
