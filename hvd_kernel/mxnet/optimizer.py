"""Optimizers that average gradients over all ranks: a wrapper of any optimizer of MXNet, and a gluon trainer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mxnet as mx

from hvd_kernel.core import metrics, step_counts
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.core.tensor import Average
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.frameworks.compression import Compression, Compressor
from hvd_kernel.mxnet.library import MxnetArgumentError
from hvd_kernel.mxnet.mpi_ops import grouped_allreduce_

step_counts.attach_loaded("mxnet.gluon.trainer")

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

    Examples
    --------
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


class DistributedTrainer(mx.gluon.Trainer):
    """A ``gluon.Trainer`` that averages gradients over all ranks.

    Parameters
    ----------
    params
        ``net.collect_params()``, a dict or a list of parameters; the same on all ranks.
    optimizer
        A name, or an ``mx.optimizer.Optimizer``.
    compression
        Compression of the gradients that are sent: ``Compression.fp16``.
    gradient_predivide_factor
        Divisor of the gradients before the sum; the result is still the average.
    prefix
        Prefix of the operations' names; needed if steps of two trainers overlap.
    num_groups
        Number of groups in which gradients are reduced, each as a whole or not at all; 0: one by one.

    Raises
    ------
    ValueError
        A parameter has sparse gradients, or is on several devices of this process.

    Examples
    --------
    ::

        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1 * hvd.size()})
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        with autograd.record():
            loss = loss_fn(net(data), label)
        loss.backward()
        trainer.step(batch_size)   # the size of this rank's batch
    """

    reduces_gradients = True  # for core/step_counts.py, which follows plain trainers

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        with raised_as(MxnetArgumentError):
            check(process_set)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer.wrapped
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have unwrapped it for you.",
                stacklevel=2,
            )
        if isinstance(params, list | tuple):
            params = sorted(params, key=lambda param: param.name)  # the same order on all ranks
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._check_params()
        self._compression = compression
        self._predivide = gradient_predivide_factor
        self._prefix = prefix or ""
        self._num_groups = num_groups
        self._process_set = process_set
        self._samples = 0

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients, divide them by this rank's ``batch_size``, and update the parameters."""
        self._samples = int(batch_size)
        super().step(batch_size, ignore_stale_grad)

    def _allreduce_grads(self) -> None:
        """Average gradients in place: gluon calls this in ``step`` and ``allreduce_grads``."""
        metrics.step(self._samples)
        self._samples = 0
        trained = [number for number, param in enumerate(self._params) if param.grad_req != "null"]
        grads = [self._params[number].list_grad()[0] for number in trained]
        sent = [self._compression.compress(grad) for grad in grads]
        reduce_in_groups(
            [small for small, _ in sent],
            trained,
            self._prefix,
            self._num_groups,
            self._predivide,
            self._process_set,
        )
        for grad, (small, ctx) in zip(grads, sent, strict=True):
            if small is not grad:
                grad[:] = self._compression.decompress(small, ctx)

    def _check_params(self) -> None:
        for param in self._params:
            if param._grad_stype != "default":  # noqa: SLF001 - MXNet has no public name for it
                raise ValueError(
                    f"DistributedTrainer: the gradient of {param.name} has storage type {param._grad_stype}, "  # noqa: SLF001
                    "which is not supported: make its layer with sparse_grad=False."
                )
        if self._contexts is not None and len(self._contexts) > 1:
            raise ValueError(
                f"DistributedTrainer: the parameters are on {len(self._contexts)} devices of this process; a rank "
                "trains on one: initialize(ctx=mx.gpu(hvd.local_rank()))."
            )
