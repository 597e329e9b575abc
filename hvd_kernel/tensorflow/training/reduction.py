"""Gradients of one step, reduced over all ranks: together in eager mode, each as it is ready in a graph.

Terms.
  local    a source that each rank has for itself: its gradient stays here
  program  the outermost graph that runs as one; branches, loops and functions that it calls are graphs of their own

Names on the wire are numbers of gradients, not of tensors or variables: those depend on what else a rank has built.
Tapes and optimizers are counted in a program, so that two do not use the same names, and so is what one of them reduces
in a graph. How often a function is traced counts for nothing: one that makes an optimizer's variables is traced twice,
on the ranks that have not loaded them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_kernel.tensorflow import library
from hvd_kernel.tensorflow.library import check, set_id
from hvd_kernel.tensorflow.mpi_ops import size_op
from hvd_kernel.tensorflow.reductions import allreduce, divided, grouped_allreduce
from hvd_kernel.tensorflow.training import presence
from hvd_kernel.tensorflow.training.plan import Parts, ReductionPlan, key_of

_KEPT = 256  # traced reductions: a program has one for each list of gradients that it reduces


class _Numbers:
    """Tapes and optimizers of a program by the order in which it sees them, also when they are gone."""

    def __init__(self) -> None:
        self._seen = 0
        self._number: WeakKeyDictionary[Reduction, int] = WeakKeyDictionary()

    def of(self, reduction: Reduction) -> int:
        if reduction not in self._number:
            self._number[reduction] = self._seen
            self._seen += 1
        return self._number[reduction]


_numbers: WeakKeyDictionary[Any, _Numbers] = WeakKeyDictionary()  # of programs
_turns: WeakKeyDictionary[Any, WeakKeyDictionary[Reduction, int]] = WeakKeyDictionary()  # of graphs


class Reduction:
    """Reduces gradients as a plan says, those of local sources aside.

    ``scale_local``: divide the gradients of local sources by the number of ranks, so that they weigh as much as
    averaged ones.
    """

    def __init__(self, plan: ReductionPlan, *, scale_local: bool) -> None:
        self.plan = plan
        self._scale_local = scale_local
        self._local: dict[int, Any] = {}

    def register_local(self, source: Any) -> None:
        """Leave the gradient of this source alone from now on."""
        self._local[key_of(source)] = source  # held, so that its key stays its own

    @tf.autograph.experimental.do_not_convert
    def __call__(self, grads: Sequence[Any], sources: Sequence[Any], use_generic_names: bool = False) -> list[Any]:
        """Return the gradients, reduced; None stays None."""
        local = [place for place, source in enumerate(sources) if key_of(source) in self._local]
        shared = [place for place in range(len(sources)) if place not in local]
        result = list(grads)
        reduced = self._reduced(
            [grads[place] for place in shared], [sources[place] for place in shared], use_generic_names
        )
        for place, grad in zip(shared, reduced, strict=True):
            result[place] = grad
        for place in local if self._scale_local else ():
            if result[place] is not None:
                result[place] = divided(result[place], size_op(set_id(self.plan.process_set, "Allreduce")))
        return result

    def _reduced(self, grads: Sequence[Any], sources: Sequence[Any], use_generic_names: bool) -> list[Any]:
        plan = self.plan
        check(plan.process_set)
        if not grads or not plan.process_set.included():
            return list(grads)
        dense = [_dense(grad) if plan.sparse_as_dense else grad for grad in grads]
        parts = plan.parts(dense, sources)
        labels = tuple(_label(source, place) for place, source in enumerate(sources))
        if tf.executing_eagerly():
            # Traced once for gradients of these shapes: all are on their way together.
            return list(_in_eager(plan, parts, labels, use_generic_names)(dense))
        return _build(plan, parts, labels, _prefix(self, use_generic_names), dense)


@functools.lru_cache(_KEPT)
def _in_eager(
    plan: ReductionPlan, parts: Parts, labels: tuple[str, ...], use_generic_names: bool
) -> Callable[..., Any]:
    prefix = "" if use_generic_names else f"{plan.name}."

    def reduce(grads: list[Any]) -> list[Any]:
        return _build(plan, parts, labels, prefix, grads)

    traced: Callable[..., Any] = tf.function(reduce, reduce_retracing=True, autograph=False)
    return traced


def _build(plan: ReductionPlan, parts: Parts, labels: tuple[str, ...], prefix: str, grads: Sequence[Any]) -> list[Any]:
    how: dict[str, Any] = {
        "device_dense": plan.device_dense,
        "device_sparse": plan.device_sparse,
        "compression": plan.compression,
        "op": plan.op,
        "process_set": plan.process_set,
        "ignore_name_scope": True,
        **plan.scales,
    }
    result = list(grads)
    agreed = presence.checked(grads, labels, f"{prefix}present", plan.process_set)
    counted = library.ops().hvd_step()
    with tf.name_scope(f"{plan.name}_Allreduce"), tf.control_dependencies([agreed, counted]):
        for number, part in enumerate(parts):
            if plan.groups is None:
                (place,) = part
                result[place] = allreduce(grads[place], name=f"{prefix}grad_{place}", **how)
                continue
            group = grouped_allreduce([grads[place] for place in part], name=f"{prefix}group_{number}", **how)
            for place, grad in zip(part, group, strict=True):
                result[place] = grad
    return result


def _prefix(reduction: Reduction, use_generic_names: bool) -> str:
    """Return what the names begin with of what a tape or an optimizer reduces next in this graph."""
    graph = tf.compat.v1.get_default_graph()
    number = _numbers.setdefault(_program(graph), _Numbers()).of(reduction)
    turns = _turns.setdefault(graph, WeakKeyDictionary())
    turn = turns.get(reduction, 0)
    turns[reduction] = turn + 1
    which = f"_{number}" * (number > 0) + f"_turn_{turn}" * (turn > 0)
    if use_generic_names:
        return f"call{which}." if which else ""
    return f"{reduction.plan.name}{which}."


def _program(graph: Any) -> Any:
    """Return the outermost graph that runs as one.

    Functions that are called in eager mode are below a graph that never runs.
    """
    eager = tf.compat.v1.executing_eagerly_outside_functions()
    outer = getattr(graph, "outer_graph", None)
    return _program(outer) if outer is not None and (outer.building_function or not eager) else graph


def _dense(grad: Any) -> Any:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _label(source: Any, place: int) -> str:
    """Return what an error calls the source: tensors have no name in eager mode."""
    try:
        name = getattr(source, "path", None) or source.name
    except (AttributeError, ValueError):
        name = None
    return str(name or f"source {place}")
