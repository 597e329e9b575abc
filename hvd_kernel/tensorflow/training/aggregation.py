"""Local gradient aggregation: gradients of several backward passes are summed here, and reduced once for all of them.

Works in eager mode, in functions and in graphs of TensorFlow 1, whose local variables its sums are.

Terms.
  pass    one call of ``compute_gradients``
  period  the passes between two reductions: ``passes`` of them
  sum     of one source's gradients in this period
  key     of a sum: its source, and how often that is listed before; the order of the sources may change
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.tensorflow.training.plan import key_of

Reduce = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
Key = tuple[int, int]

PASSES_DIFFER = (
    "backward_passes_per_step: the passes of one step brought gradients of different variables, so that their sums "
    "would be incomplete. Pass the same variables in every pass, or use one DistributedOptimizer for each list."
)


class Period:
    """Counts the passes of a period, from 1 up to ``passes``, which all have the same sources."""

    def __init__(self, passes: int) -> None:
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self.passes = passes
        self.counter: Any = None
        self._current: Any = None  # the number of the list of sources that this period has
        self._numbers: dict[frozenset[Key], int] = {}
        self._held: list[Any] = []  # sources, so that their keys stay their own

    def begin(self, sources: Sequence[Any], start: Callable[[], Any]) -> Any:
        """Return an operation that does what ``start`` adds in the first pass of a period.

        In the others it fails with InvalidArgumentError where the sources are not those of the first.
        """
        self.make_variables()
        keys = frozenset(keys_of(sources))
        if keys not in self._numbers:
            self._numbers[keys] = len(self._numbers)
            self._held.extend(sources)
        number = self._numbers[keys]

        def first() -> Any:
            return tf.group(*operations([start(), self._current.assign(number)]))

        def later() -> Any:
            same = tf.equal(self._current.read_value(), number)
            return tf.group(*operations([tf.debugging.Assert(same, [PASSES_DIFFER])]))

        return tf.cond(tf.equal(self.counter.read_value(), 0), first, later)

    def is_over(self) -> Any:
        """Return whether the pass was the last one."""
        return tf.equal(self.counter.read_value(), self.passes)

    def make_variables(self) -> None:
        """Make the counter: nothing that a checkpoint has."""
        if self.counter is None:
            self.counter = variable([], tf.int32, "aggregation_counter")
            self._current = variable([], tf.int32, "aggregation_sources")


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
        self._period = Period(passes)
        self._reduce = reduce
        self._sparse_as_dense = sparse_as_dense
        self._divisor = passes if average else 1
        self._sums: dict[Key, Any] = {}

    @property
    def counter(self) -> Any:
        """The variable that counts the passes of this period; None before the first."""
        return self._period.counter

    def compute_gradients(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Add the gradients to the sums; return the reduced sums at the end of a period, else the gradients.

        A gradient that is None in some passes of a period counts as zeros in those; one that has always been None
        stays None.

        Raises
        ------
        ValueError
            A gradient is IndexedSlices, and those are not taken as dense.
        tf.errors.InvalidArgumentError
            The sources are not those of the other passes of this period.
        """
        dense = [self._dense(grad) for grad in grads]
        keys = keys_of(sources)
        self._make_sums(dense, sources, keys)
        places = [place for place, key in enumerate(keys) if key in self._sums]
        sums = {place: self._sums[keys[place]] for place in places}
        begun = self._period.begin(sources, lambda: _cleared(list(sums.values())))
        with tf.control_dependencies(operations([begun])):
            added = [total.assign_add(dense[place]) for place, total in sums.items() if dense[place] is not None]
        with tf.control_dependencies(operations(added)):
            passed = self.counter.assign_add(1)
        with tf.control_dependencies(operations([passed])):
            results = tf.cond(
                self._period.is_over(),
                lambda: self._reduced(sums, sources),
                lambda: [
                    tf.zeros_like(total) if dense[place] is None else tf.identity(dense[place])
                    for place, total in sums.items()
                ],
            )
        reduced = iter(results if isinstance(results, list | tuple) else [results])
        return [next(reduced) if place in sums else None for place in range(len(dense))]

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
        with tf.control_dependencies(operations(computed)):
            return tf.cond(tf.equal(self.counter.read_value(), 0), applied, skipped)

    def _reduced(self, sums: dict[int, Any], sources: Sequence[Any]) -> list[Any]:
        values = [sums[place].read_value() if place in sums else None for place in range(len(sources))]
        reduced = [grad for grad in self._reduce(values, sources) if grad is not None]
        with tf.control_dependencies(operations(reduced)):
            over = self.counter.assign(0)
        with tf.control_dependencies(operations([over])):
            return [grad / tf.cast(self._divisor, grad.dtype) for grad in reduced]

    def _dense(self, grad: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad

    def _make_sums(self, grads: Sequence[Any], sources: Sequence[Any], keys: Sequence[Key]) -> None:
        self._period.make_variables()
        for grad, source, key in zip(grads, sources, keys, strict=True):
            if grad is not None and key not in self._sums:
                self._sums[key] = variable(source.shape, grad.dtype, f"aggregation_sum_{len(self._sums)}")


def keys_of(sources: Sequence[Any]) -> list[Key]:
    """Return the keys of sources, each of which may be listed more than once."""
    seen: Counter[int] = Counter()
    keys = []
    for source in map(key_of, sources):
        keys.append((source, seen[source]))
        seen[source] += 1
    return keys


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


def operations(results: Sequence[Any]) -> list[Any]:
    """Return what others can depend on: in eager mode some operations give nothing, and have been done."""
    return [each.values if isinstance(each, tf.IndexedSlices) else each for each in results if each is not None]
