"""Reduction of the gradients of a step over all ranks: together in eager mode, each when it is ready in a graph.

Terms.
  source   the value that a gradient belongs to, usually a variable
  group    sources whose gradients are reduced as a whole or not at all
  local    a source of this rank alone: its gradient is not reduced
  program  the outermost graph that runs as one; branches, loops and functions that it calls are graphs of their own

Names. Operations are named after the numbers of gradients, not after tensors or variables, whose names depend on what
else a rank has built. Tapes and optimizers are numbered within a program, so that their names differ, and so are the
reductions of each in a graph. The number of traces of a function has no influence: a function that creates an
optimizer's variables is traced twice on ranks that have not loaded them.

Presence. Every reduction starts with a small sum over the ranks: the number of dense gradients, and of slices, of each
source. All or none of the ranks that take part must have one; ranks that have joined do not take part. So a gradient
that is None everywhere stays None, and one that is None on some ranks only is an error on all ranks, with the remedy,
instead of a reduction that waits forever; the engine continues to work. The sum does not depend on the step, so in a
graph it is complete before the first gradient is.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.tensorflow import library
from hvd_kernel.tensorflow.compression import Compressor
from hvd_kernel.tensorflow.library import check, set_id
from hvd_kernel.tensorflow.mpi_ops import Average, Sum, _allreduce, size_op
from hvd_kernel.tensorflow.reductions import allreduce, divided, grouped_allreduce

Groups = int | tuple[tuple[int, ...], ...] | None  # the number of groups, or the keys of the sources of each
Parts = tuple[tuple[int, ...], ...]  # indices of the gradients of each operation

_KEPT = 256  # traced reductions: a program has one for each list of gradients that it reduces
_PRESENCE_DIFFERS = (
    "Ranks differ in which gradients are None (or tf.IndexedSlices): a reduction would wait forever. Use the variable "
    "on every rank, or take the gradient as zeros: unconnected_gradients=tf.UnconnectedGradients.ZERO. It is that of:"
)


@dataclass(frozen=True)
class ReductionPlan:
    """Options of a tape or an optimizer; equal plans share their traced reductions."""

    name: str
    device_dense: str
    device_sparse: str
    compression: type[Compressor]
    sparse_as_dense: bool
    op: int
    predivide: float
    groups: Groups
    process_set: ProcessSet

    @property
    def scales(self) -> dict[str, float]:
        """Factors before and after the sum, in addition to the division by Average."""
        return {"prescale_factor": 1.0 / self.predivide, "postscale_factor": self.predivide}

    def parts(self, grads: Sequence[Any], sources: Sequence[Any]) -> Parts:
        """Return the gradients of each operation, without those that are None."""
        places = [place for place, grad in enumerate(grads) if grad is not None]
        if self.groups is None:
            return tuple((place,) for place in places)
        if isinstance(self.groups, int):
            return _cut(places, self.groups)
        place_of = {key_of(sources[place]): place for place in places}
        grouped = [tuple(place_of[key] for key in group if key in place_of) for group in self.groups]
        alone = set(places) - set(chain.from_iterable(grouped))
        return tuple(part for part in [*grouped, *((place,) for place in sorted(alone))] if part)


def checked_groups(num_groups: int, groups: Any) -> Groups:
    """Return the requested groups.

    Raises
    ------
    ValueError
        ``groups`` is neither a positive number nor a list of lists of variables.
    """
    if num_groups:
        message = "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    return tuple(tuple(key_of(variable) for variable in group) for group in groups)


def check_predivide(factor: float, op: int) -> None:
    """Raise an error for a factor with another operation than Average."""
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")


def key_of(source: Any) -> int:
    """Return the identity of a source; of a variable of Keras 3 that of the TensorFlow variable in it."""
    inner = getattr(source, "value", None)
    return id(inner if isinstance(inner, tf.Variable) else source)


def _cut(places: list[int], count: int) -> Parts:
    """Cut a list into consecutive parts of nearly equal length, the longer ones first."""
    shortest, longer = divmod(len(places), count)
    ends = [shortest * part + min(part, longer) for part in range(count + 1)]
    return tuple(tuple(places[start:end]) for start, end in pairwise(ends) if end > start)


class _Numbers:
    """Numbers the tapes and optimizers of a program in order of first use, including deleted ones."""

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
    """Reduces gradients according to a plan, except those of local sources.

    With ``scale_local`` the gradients of local sources are divided by the number of ranks, so that they have the weight
    of averaged ones.
    """

    def __init__(self, plan: ReductionPlan, *, scale_local: bool) -> None:
        self.plan = plan
        self._scale_local = scale_local
        self._local: dict[int, Any] = {}

    def register_local(self, source: Any) -> None:
        """Exclude the gradient of this source from reductions."""
        self._local[key_of(source)] = source  # kept alive, so that its key stays unique

    @tf.autograph.experimental.do_not_convert
    def __call__(self, grads: Sequence[Any], sources: Sequence[Any], use_generic_names: bool = False) -> list[Any]:
        """Return the reduced gradients; None stays None."""
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
        dense = [_to_dense(grad) if plan.sparse_as_dense else grad for grad in grads]
        parts = plan.parts(dense, sources)
        labels = tuple(_label(source, place) for place, source in enumerate(sources))
        if tf.executing_eagerly():
            # A function, traced once for gradients of these shapes, so that all reductions overlap.
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
    options: dict[str, Any] = {
        "device_dense": plan.device_dense,
        "device_sparse": plan.device_sparse,
        "compression": plan.compression,
        "op": plan.op,
        "process_set": plan.process_set,
        "ignore_name_scope": True,
        **plan.scales,
    }
    result = list(grads)
    agreed = _check_presence(grads, labels, f"{prefix}present", plan.process_set)
    counted = library.ops().hvd_step()
    with tf.name_scope(f"{plan.name}_Allreduce"), tf.control_dependencies([agreed, counted]):
        for number, part in enumerate(parts):
            if plan.groups is None:
                (place,) = part
                result[place] = allreduce(grads[place], name=f"{prefix}grad_{place}", **options)
                continue
            group = grouped_allreduce([grads[place] for place in part], name=f"{prefix}group_{number}", **options)
            for place, grad in zip(part, group, strict=True):
                result[place] = grad
    return result


def _prefix(reduction: Reduction, use_generic_names: bool) -> str:
    """Return the prefix of the names of a tape's or an optimizer's next reduction in this graph."""
    graph = tf.compat.v1.get_default_graph()
    number = _numbers.setdefault(_program(graph), _Numbers()).of(reduction)
    turns = _turns.setdefault(graph, WeakKeyDictionary())
    turn = turns.get(reduction, 0)
    turns[reduction] = turn + 1
    suffix = f"_{number}" * (number > 0) + f"_turn_{turn}" * (turn > 0)
    if use_generic_names:
        return f"call{suffix}." if suffix else ""
    return f"{reduction.plan.name}{suffix}."


def _program(graph: Any) -> Any:
    """Return the outermost graph that runs as one; above functions called in eager mode is a graph that never runs."""
    eager = tf.compat.v1.executing_eagerly_outside_functions()
    outer = getattr(graph, "outer_graph", None)
    return _program(outer) if outer is not None and (outer.building_function or not eager) else graph


def _to_dense(grad: Any) -> Any:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _label(source: Any, place: int) -> str:
    """Return the name of a source in errors; tensors have no name in eager mode."""
    try:
        name = getattr(source, "path", None) or source.name
    except (AttributeError, ValueError):
        name = None
    return str(name or f"source {place}")


def _check_presence(grads: Sequence[Any], labels: Sequence[str], name: str, process_set: ProcessSet) -> Any:
    """Return an operation that fails if gradients are None on some ranks only; reductions depend on it.

    Parameters
    ----------
    grads
        n tensors, IndexedSlices or None.
    labels
        Names of the n sources.
    """
    dense = [int(_is_dense(grad)) for grad in grads]
    slices = [int(isinstance(grad, tf.IndexedSlices)) for grad in grads]
    local = tf.constant([1, *dense, *slices], tf.int32)
    total = _allreduce(local, name=name, op=Sum, ignore_name_scope=True, process_set=process_set)
    mixed = tf.math.floormod(total, total[0])  # 0: of no rank, or of all that take part

    def fail() -> Any:
        differs = tf.reduce_any(tf.not_equal(tf.reshape(mixed[1:], [2, len(grads)]), 0), axis=0)
        culprits = tf.boolean_mask(tf.constant(list(labels), tf.string), differs)
        failure = tf.raw_ops.Assert(condition=False, data=[_PRESENCE_DIFFERS, culprits], summarize=len(grads))
        with tf.control_dependencies([failure]):
            return tf.constant(False)

    # Few operations until here: the first gradient may wait for them.
    return tf.cond(tf.reduce_all(tf.equal(mixed, 0)), lambda: tf.constant(True), fail)


def _is_dense(grad: Any) -> bool:
    return grad is not None and not isinstance(grad, tf.IndexedSlices)
