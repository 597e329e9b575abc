"""Optimizer that averages gradients over all ranks before it updates, around any of MXNet's."""

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
    """Wraps an optimizer for ``mx.mod.Module`` and loops of one's own; with gluon use ``DistributedTrainer``.

    What it is asked and told, the learning rate for one, is the wrapped optimizer's.

    Parameters
    ----------
    optimizer
        Any ``mx.optimizer.Optimizer``.
    gradient_predivide_factor
        What gradients are divided by before they are added up; the average stays the average.
    num_groups
        Gradients that come together are reduced in so many groups, each together or not at all; 0: one by one.

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
        own = zip(_OWN, (optimizer, gradient_predivide_factor, num_groups, process_set), strict=True)
        self.__dict__.update(own)  # its own constructor would give it all that the wrapped one has

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):  # before it has them: while it is copied
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
        """The optimizer that updates."""
        return self._optimizer

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return what the wrapped optimizer remembers of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return what the wrapped optimizer remembers of a weight of float16."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or gradients, over the ranks, in place; then update."""
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Do so with weights of float16."""
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the wrapped optimizer's."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the wrapped optimizer's."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the wrapped optimizer's."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        several = isinstance(index, tuple | list)
        indices, grads = (list(index), list(grad)) if several else ([index], [grad])
        if indices and str(indices[0]) == "0":
            metrics.step()
        reduce_in_groups(grads, indices, "", self._num_groups, self._gradient_predivide_factor, self._process_set)


@raised_as(MxnetArgumentError)
def reduce_in_groups(  # noqa: PLR0917 - what a trainer tells it too
    grads: Sequence[Any],
    indices: Sequence[Any],
    prefix: str,
    num_groups: int,
    predivide: float,
    process_set: ProcessSet,
) -> None:
    """Average gradients in place over the ranks of a set; ranks outside of it keep theirs.

    Their names are the numbers of their weights. Those of the first layers go first: they are wanted first.
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
    """Divide places into groups of nearly equal length; 0 groups: each by itself."""
    wanted = min(groups, count) if groups > 0 else count
    ends = [count * number // wanted for number in range(wanted + 1)] if wanted else [0]
    return [range(begin, end) for begin, end in pairwise(ends)]


def _number(index: Any) -> int:
    return index if isinstance(index, int) else 0
