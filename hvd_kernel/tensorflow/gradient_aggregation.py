"""Local gradient aggregation: the gradients of several backward passes are summed on this rank, and reduced once.

It works in eager mode, in functions and in graphs of TensorFlow 1, where the sums are local variables.
``LocalGradientAggregationHelper`` and its eager form, Horovod's classes of this concept, are for programs that use them
directly.

Terms.
  pass    one call of ``compute_gradients``
  period  the ``passes`` passes between two reductions
  sum     the sum of a source's gradients in a period
  key     identifies a sum: its source, and how often that is listed before; the order of the sources may change
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.gradient_reduction import key_of
from hvd_kernel.tensorflow.library import set_id
from hvd_kernel.tensorflow.mpi_ops import size_op
from hvd_kernel.tensorflow.reductions import divided

Divisor = Callable[[], Any] | None  # of the gradients of local variables
Reduce = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
Key = tuple[int, int]

PASSES_DIFFER = (
    "backward_passes_per_step: the passes of one step brought gradients of different variables, so that their sums "
    "would be incomplete. Pass the same variables in every pass, or use one DistributedOptimizer for each list."
)


class Period:
    """Counts the passes of a period, from 1 to ``passes``, all with the same sources."""

    def __init__(self, passes: int) -> None:
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self.passes = passes
        self.counter: Any = None
        self._current: Any = None  # the number of this period's list of sources
        self._numbers: dict[frozenset[Key], int] = {}
        self._held: list[Any] = []  # sources, kept alive so that their keys stay unique

    def begin(self, sources: Sequence[Any], start: Callable[[], Any]) -> Any:
        """Return an operation that runs ``start()`` in the first pass of a period.

        In later passes it raises InvalidArgumentError if the sources differ from those of the first pass.
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
        """Return whether the pass was the last of the period."""
        return tf.equal(self.counter.read_value(), self.passes)

    def make_variables(self) -> None:
        """Create the counter, which is not part of checkpoints."""
        if self.counter is None:
            self.counter = variable([], tf.int32, "aggregation_counter")
            self._current = variable([], tf.int32, "aggregation_sources")


class Aggregation:
    """Sums gradients over a period; an optimizer applies them at its end only.

    Parameters
    ----------
    passes
        The number of passes of a period, at least 1.
    reduce
        Function of gradients and their sources that returns the reduced gradients.
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

        A gradient that is None in some passes of a period counts as zeros there; one that has always been None stays
        None.

        Raises
        ------
        ValueError
            A gradient is IndexedSlices, and ``sparse_as_dense`` is not set.
        tf.errors.InvalidArgumentError
            The sources differ from those of the other passes of this period.
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
        """Call ``apply`` at the end of a period; otherwise only increment the step counters, if there are any."""

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
    """Return the keys of sources, which may be listed more than once."""
    seen: Counter[int] = Counter()
    keys = []
    for source in map(key_of, sources):
        keys.append((source, seen[source]))
        seen[source] += 1
    return keys


def variable(shape: Any, dtype: Any, name: str) -> Any:
    """Return a variable of zeros that is not part of checkpoints or optimizers; in a graph a local variable."""
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
    return tf.group(*[total.assign(tf.zeros_like(total)) for total in sums])


def operations(results: Sequence[Any]) -> list[Any]:
    """Return the operations that others can depend on; in eager mode some have run already and are None."""
    return [
        result.values if isinstance(result, tf.IndexedSlices) else result for result in results if result is not None
    ]


# Horovod's classes.


class _Helper:
    """Base of both forms; ``allreduce_func`` gets the gradients and variables that are not local."""

    def __init__(
        self, passes: int, allreduce_func: Reduce, sparse_as_dense: bool, average: bool, divisor: Divisor
    ) -> None:
        self._allreduce = allreduce_func
        self._divisor = divisor
        self._local: dict[int, Any] = {}
        self._aggregation = Aggregation(passes, self._reduce, sparse_as_dense=sparse_as_dense, average=average)

    @property
    def counter(self) -> Any:
        """The variable that counts the passes of this period."""
        return self._aggregation.counter

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self._local[key_of(var)] = var

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002 - Horovod's name
        """Add the gradients; return the reduced sums at the end of a period, else the gradients."""
        return self._aggregation.compute_gradients(grads, vars)

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: Any,
        grads_and_vars: Sequence[Any],
        global_step: Any = None,
        name: str | None = None,  # noqa: ARG002 - Horovod's
    ) -> Any:
        """Call the closure at the end of a period; otherwise only increment the step counters."""
        return self._aggregation.apply_gradients(apply_grads_closure, optimizer, list(grads_and_vars), global_step)

    def _reduce(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        result = list(grads)
        shared = [place for place, source in enumerate(sources) if key_of(source) not in self._local]
        reduced = self._allreduce([grads[place] for place in shared], [sources[place] for place in shared])
        for place, grad in zip(shared, reduced, strict=True):
            result[place] = grad
        for place, grad in enumerate(grads):
            if self._divisor is not None and place not in shared and grad is not None:
                result[place] = divided(grad, self._divisor())
        return result


class LocalGradientAggregationHelper(_Helper):
    """Sums gradients of several passes, of an optimizer in a graph."""

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,  # noqa: ARG002 - Horovod's, for names of variables
        optimizer_type: str,  # noqa: ARG002 - Horovod's
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",  # noqa: ARG002 - Horovod's, for names of variables
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            (lambda: size_op(set_id(process_set, "Allreduce"))) if scale_local_gradients else None,
        )


class LocalGradientAggregationHelperEager(_Helper):
    """Sums gradients of several passes, of an optimizer in eager mode."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduce,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        local_gradients_scaling_factor: float = 1.0,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            lambda: local_gradients_scaling_factor,
        )
