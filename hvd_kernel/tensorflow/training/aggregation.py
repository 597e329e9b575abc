"""Local gradient aggregation: gradients of several backward passes are summed here, and reduced once for all of them.

Works in eager mode, in functions and in graphs of TensorFlow 1, whose local variables its sums are.

Terms.
  pass    one call of ``compute_gradients``
  period  the passes between two reductions: ``passes`` of them
  sum     of one source's gradients in this period
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Reduce = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class Aggregation:
    """Sums gradients, and lets an optimizer apply them at the end of a period only.

    Parameters
    ----------
    passes
        How many passes a period has, from 1.
    reduce
        Given gradients and their sources, returns the reduced ones.
    average
        Divide the sums by ``passes``.

    Raises
    ------
    ValueError
        ``passes`` is less than 1.
    """

    def __init__(self, passes: int, reduce: Reduce, *, sparse_as_dense: bool, average: bool) -> None:
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes = passes
        self._reduce = reduce
        self._sparse_as_dense = sparse_as_dense
        self._divisor = passes if average else 1
        self._sums: dict[int, Any] = {}
        self.counter: Any = None

    def compute_gradients(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Add the gradients to the sums; return the reduced sums at the end of a period, else what was given.

        Raises
        ------
        ValueError
            A gradient is IndexedSlices, and those are not taken as dense.
        """
        given = [self._dense(grad) for grad in grads]
        places = [place for place, grad in enumerate(given) if grad is not None]
        self._make_variables({place: given[place] for place in places}, sources)
        sums = [self._sums[place] for place in places]
        begun = tf.cond(tf.equal(self.counter.read_value(), 0), lambda: _cleared(sums), tf.no_op)
        with tf.control_dependencies(_operations([begun])):
            added = [each.assign_add(given[place]) for each, place in zip(sums, places, strict=True)]
        with tf.control_dependencies(_operations(added)):
            passed = self.counter.assign_add(1)
        with tf.control_dependencies(_operations([passed])):
            results = tf.cond(
                tf.equal(self.counter.read_value(), self._passes),
                lambda: self._reduced(places, sources),
                lambda: [tf.identity(given[place]) for place in places],
            )
        reduced = iter(results if isinstance(results, list | tuple) else [results])
        return [None if grad is None else next(reduced) for grad in given]

    def apply_gradients(
        self, apply: Callable[[], Any], optimizer: Any, grads_and_vars: Sequence[Any], global_step: Any = None
    ) -> Any:
        """Call ``apply`` at the end of a period; else only count the step, where something counts steps."""

        def applied() -> Any:
            return tf.group(apply())

        def skipped() -> Any:
            counters = (getattr(optimizer, "iterations", None), global_step)
            return tf.group(*[counter.assign_add(tf.ones_like(counter)) for counter in counters if counter is not None])

        computed = [grad for grad, _ in grads_and_vars if grad is not None]
        with tf.control_dependencies(_operations(computed)):
            return tf.cond(tf.equal(self.counter.read_value(), 0), applied, skipped)

    def _reduced(self, places: Sequence[int], sources: Sequence[Any]) -> list[Any]:
        sums: list[Any] = [None] * len(sources)
        for place in places:
            sums[place] = self._sums[place].read_value()
        reduced = [each for each in self._reduce(sums, sources) if each is not None]
        with tf.control_dependencies(_operations(reduced)):
            over = self.counter.assign(0)
        with tf.control_dependencies(_operations([over])):
            return [each / tf.cast(self._divisor, each.dtype) for each in reduced]

    def _dense(self, grad: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad

    def _make_variables(self, grads: dict[int, Any], sources: Sequence[Any]) -> None:
        if self.counter is None:
            self.counter = variable([], tf.int32, "aggregation_counter")
        for place, grad in grads.items():
            if place not in self._sums:
                self._sums[place] = variable(sources[place].shape, grad.dtype, f"aggregation_sum_{place}")


def variable(shape: Any, dtype: Any, name: str) -> Any:
    """Return a variable of zeros that no checkpoint and no optimizer knows of; in a graph it is a local one."""
    with tf.init_scope():
        return tf.compat.v1.Variable(
            lambda: tf.zeros(shape, dtype),
            trainable=False,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            name=name,
            dtype=dtype,
        )


def _cleared(sums: Sequence[Any]) -> Any:
    return tf.group(*[each.assign(tf.zeros_like(each)) for each in sums])


def _operations(results: Sequence[Any]) -> list[Any]:
    """Return what others can depend on: in eager mode some operations give nothing, and have been done."""
    return [each.values if isinstance(each, tf.IndexedSlices) else each for each in results if each is not None]
