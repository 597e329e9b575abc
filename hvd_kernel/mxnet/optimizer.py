"""Optimizer that averages gradients over all ranks before it updates; wraps any optimizer of MXNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mxnet as mx

from hvd_kernel.core import metrics
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.core.tensor import Average
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.mxnet.library import MxnetArgumentError
from hvd_kernel.mxnet.mpi_ops import grouped_allreduce_

_OWN = ("_optimizer", "_gradient_predivide_factor", "_num_groups", "_process_set")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Wraps an optimizer for ``mx.mod.Module`` and custom loops; with gluon use ``DistributedTrainer``.

    Attributes, such as the learning rate, are those of the wrapped optimizer.

    Parameters
    ----------
    optimizer
        Any ``mx.optimizer.Optimizer``.
    gradient_predivide_factor
        Divisor of the gradients before the sum; the result is still the average.
    num_groups
        Number of groups in which the gradients of an update are reduced, each as a whole or not at all; 0: one by one.

    Example
    -------
    ::

        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1 * hvd.size()))
        module.init_optimizer(kvstore=None, optimizer=optimizer)
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        with raised_as(MxnetArgumentError):
            check(process_set)
        attributes = zip(_OWN, (optimizer, gradient_predivide_factor, num_groups, process_set), strict=True)
        self.__dict__.update(attributes)  # Optimizer.__init__ would set the wrapped optimizer's attributes here

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):  # not set yet: the object is being copied
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def wrapped(self) -> Any:
        """The wrapped optimizer."""
        return self._optimizer

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the wrapped optimizer's state of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return the wrapped optimizer's state of a float16 weight."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or gradients, over all ranks, in place; then update."""
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients of float16 weights, in place; then update."""
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the wrapped optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the learning rate multipliers of the wrapped optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the weight decay multipliers of the wrapped optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        several = isinstance(index, tuple | list)
        indices, grads = (list(index), list(grad)) if several else ([index], [grad])
        if indices and str(indices[0]) == "0":
            metrics.step()
        reduce_in_groups(grads, indices, "", self._num_groups, self._gradient_predivide_factor, self._process_set)


@raised_as(MxnetArgumentError)
def reduce_in_groups(  # noqa: PLR0917 - the arguments of DistributedTrainer too
    grads: Sequence[Any],
    indices: Sequence[Any],
    prefix: str,
    num_groups: int,
    predivide: float,
    process_set: ProcessSet,
) -> None:
    """Average gradients in place over the ranks of a process set; other ranks keep their gradients.

    Operations are named after the numbers of the weights. Those of the first layers have priority: the next forward
    pass needs them first.
    """
    check(process_set)
    if process_set.size() == 1 or not process_set.included():
        return
    for number, part in enumerate(_parts(len(grads), num_groups)):
        first, last = indices[part[0]], indices[part[-1]]
        grouped_allreduce_(
            [grads[place] for place in part],
            name=f"{prefix}{first}" if first == last else f"{prefix}{first}:{last}",
            priority=-number if num_groups else -_number(first),
            prescale_factor=1.0 / predivide,
            postscale_factor=predivide,
            process_set=process_set,
            op=Average,
        )


def _parts(count: int, groups: int) -> list[range]:
    """Divide ``count`` indices into groups of nearly equal length; with 0 groups, one index in each."""
    parts = min(groups, count) if groups > 0 else count
    ends = [count * number // parts for number in range(parts + 1)] if parts else [0]
    return [range(begin, end) for begin, end in pairwise(ends)]


def _number(index: Any) -> int:
    return index if isinstance(index, int) else 0
